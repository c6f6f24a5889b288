import fr.esrf.Tango.AttrDataFormat;
import fr.esrf.Tango.AttrQuality;
import fr.esrf.Tango.DevFailed;
import fr.esrf.TangoApi.AttributeInfoEx;
import fr.esrf.TangoApi.CallBack;
import fr.esrf.TangoApi.Database;
import fr.esrf.TangoApi.DeviceAttribute;
import fr.esrf.TangoApi.DeviceData;
import fr.esrf.TangoApi.DeviceProxy;
import fr.esrf.TangoApi.events.EventData;
import fr.esrf.TangoDs.TangoConst;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * A client made of JTango, as Jive is: takes requests from standard input, one a line, with tabs between the words, and
 * answers each with one line of JSON. Events come as lines of their own.
 */
public final class Client {
    private static final PrintStream OUT =
            new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
    private static final Map<String, DeviceProxy> PROXIES = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        System.setOut(System.err); // the libraries' own messages
        var requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            print(answer(line.split("\t")));
        }
        System.exit(0); // the ORB's threads would go on
    }

    private static Map<String, Object> answer(String[] words) {
        try {
            return switch (words[0]) {
                case "devices" -> Map.of("devices", new Database().getDevices(words[1]));
                case "attributes" -> Map.of("attributes", proxy(words[1]).get_attribute_list());
                case "info" -> info(proxy(words[1]).get_attribute_info_ex(words[2]));
                case "read" -> read(proxy(words[1]), words[2]);
                case "write" -> write(proxy(words[1]), words[2], Short.parseShort(words[3]));
                case "command" -> command(proxy(words[1]), words[2], words.length > 3 ? words[3] : null);
                case "subscribe" -> subscribe(proxy(words[1]), words[2]);
                default -> Map.of("failed", "no such request: " + words[0]);
            };
        } catch (DevFailed failed) {
            return Map.of("failed", failed.errors[0].desc, "reason", failed.errors[0].reason);
        } catch (Exception failed) {
            return Map.of("failed", failed.toString(), "reason", failed.getClass().getSimpleName());
        }
    }

    private static DeviceProxy proxy(String device) throws DevFailed {
        if (!PROXIES.containsKey(device)) {
            PROXIES.put(device, new DeviceProxy(device));
        }
        return PROXIES.get(device);
    }

    private static Map<String, Object> info(AttributeInfoEx info) {
        var found = new LinkedHashMap<String, Object>();
        found.put("label", info.label);
        found.put("unit", info.unit);
        found.put("format", info.format);
        found.put("description", info.description);
        found.put("type", TangoConst.Tango_CmdArgTypeName[info.data_type]);
        found.put("shape", shape(info.data_format));
        found.put("labels", info.enum_label);
        found.put("min_warning", info.alarms.min_warning);
        found.put("max_warning", info.alarms.max_warning);
        found.put("max_alarm", info.alarms.max_alarm);
        found.put("min_value", info.min_value);
        found.put("max_value", info.max_value);
        return found;
    }

    private static String shape(AttrDataFormat format) {
        return switch (format.value()) {
            case AttrDataFormat._SCALAR -> "SCALAR";
            case AttrDataFormat._SPECTRUM -> "SPECTRUM";
            default -> "IMAGE";
        };
    }

    private static Map<String, Object> read(DeviceProxy proxy, String name) throws DevFailed {
        return content(proxy.read_attribute(name));
    }

    private static Map<String, Object> write(DeviceProxy proxy, String name, short value) throws DevFailed {
        proxy.write_attribute(new DeviceAttribute(name, value));
        return read(proxy, name);
    }

    private static Map<String, Object> command(DeviceProxy proxy, String name, String argument) throws DevFailed {
        var data = new DeviceData();
        if (argument != null) {
            data.insert(argument);
        }
        var answer = argument == null ? proxy.command_inout(name) : proxy.command_inout(name, data);
        var found = new LinkedHashMap<String, Object>();
        switch (answer.getType()) {
            case TangoConst.Tango_DEVVAR_LONGSTRINGARRAY -> {
                found.put("numbers", box(answer.extractLongStringArray().lvalue));
                found.put("texts", answer.extractLongStringArray().svalue);
            }
            case TangoConst.Tango_DEV_STRING -> found.put("texts", new String[] {answer.extractString()});
            case TangoConst.Tango_DEV_STATE ->
                found.put("texts", new String[] {TangoConst.Tango_DevStateName[answer.extractDevState().value()]});
            default -> found.put("type", answer.getType());
        }
        return found;
    }

    private static Map<String, Object> subscribe(DeviceProxy proxy, String name) throws DevFailed {
        var listener = new CallBack() {
            @Override
            public void push_event(EventData event) {
                var found = new LinkedHashMap<String, Object>();
                found.put("event", name);
                try {
                    found.putAll(event.err ? Map.of("failed", event.errors[0].desc) : content(event.attr_value));
                } catch (DevFailed failed) {
                    found.put("failed", failed.errors[0].desc);
                }
                print(found);
            }
        };
        return Map.of("id", proxy.subscribe_event(name, TangoConst.CHANGE_EVENT, listener, new String[0], false));
    }

    private static Map<String, Object> content(DeviceAttribute attribute) throws DevFailed {
        var found = new LinkedHashMap<String, Object>();
        AttrQuality quality = attribute.getQuality();
        found.put("quality", TangoConst.Tango_QualityName[quality.value()]);
        found.put("time", attribute.getTimeValMillisSec() / 1e3);
        if (quality != AttrQuality.ATTR_INVALID) { // then JTango refuses to tell any of this
            found.put("columns", attribute.getDimX());
            found.put("rows", attribute.getDimY());
            found.put("value", values(attribute));
        }
        return found;
    }

    /** Gives what was read, without what was set. */
    private static List<Object> values(DeviceAttribute attribute) throws DevFailed {
        List<Object> all = switch (attribute.getType()) {
            case TangoConst.Tango_DEV_DOUBLE -> box(attribute.extractDoubleArray());
            case TangoConst.Tango_DEV_FLOAT -> box(attribute.extractFloatArray());
            case TangoConst.Tango_DEV_LONG -> box(attribute.extractLongArray());
            case TangoConst.Tango_DEV_LONG64 -> box(attribute.extractLong64Array());
            case TangoConst.Tango_DEV_SHORT, TangoConst.Tango_DEV_ENUM -> box(attribute.extractShortArray());
            case TangoConst.Tango_DEV_BOOLEAN -> box(attribute.extractBooleanArray());
            case TangoConst.Tango_DEV_STRING -> box(attribute.extractStringArray());
            case TangoConst.Tango_DEV_STATE ->
                List.of(TangoConst.Tango_DevStateName[attribute.extractDevState().value()]);
            default -> List.of("type " + attribute.getType());
        };
        return all.subList(0, Math.min(all.size(), attribute.getNbRead()));
    }

    private static List<Object> box(Object array) {
        var found = new ArrayList<Object>();
        for (int index = 0; index < java.lang.reflect.Array.getLength(array); index++) {
            found.add(java.lang.reflect.Array.get(array, index));
        }
        return found;
    }

    private static void print(Map<String, Object> line) {
        OUT.println(json(line));
    }

    private static String json(Object value) {
        if (value instanceof Map<?, ?> map) {
            var parts = new ArrayList<String>();
            map.forEach((name, part) -> parts.add(json(name) + ": " + json(part)));
            return "{" + String.join(", ", parts) + "}";
        }
        if (value instanceof Object[] array) {
            return json(Arrays.asList(array));
        }
        if (value instanceof List<?> list) {
            return "[" + String.join(", ", list.stream().map(Client::json).toList()) + "]";
        }
        if (value instanceof String text) {
            return quoted(text);
        }
        return String.valueOf(value); // a number, true, false, null; NaN is what Python reads too
    }

    private static String quoted(String text) {
        var found = new StringBuilder("\"");
        for (char one : text.toCharArray()) {
            found.append(one < ' ' || one == '"' || one == '\\' ? String.format("\\u%04x", (int) one) : one);
        }
        return found.append('"').toString();
    }
}

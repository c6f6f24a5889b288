// A client made of the C++ library of Tango: takes requests from standard input, one a line, with tabs between the
// words, and answers each with one line of JSON. Events come as lines of their own. It does what jtango/Client.java does.

#include <tango.h>

#include <cmath>
#include <iomanip>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

namespace {

std::mutex printing;  // events come from a thread of the library

void print(const std::string &fields) {
    const std::lock_guard<std::mutex> lock(printing);
    std::cout << "{" << fields << "}" << std::endl;
}

std::string json(const std::string &text) {
    std::ostringstream out;
    out << '"';
    for (const unsigned char one : text) {
        if (one == '"' || one == '\\') {
            out << '\\' << one;
        } else if (one < ' ') {
            out << "\\u" << std::hex << std::setw(4) << std::setfill('0') << int(one);
        } else {
            out << one;
        }
    }
    out << '"';
    return out.str();
}

std::string json(const char *text) { return json(std::string(text)); }
std::string json(bool value) { return value ? "true" : "false"; }
std::string json(Tango::DevState state) { return json(Tango::DevStateName[state]); }

template <typename Number>
std::string json(Number value) {
    if (std::isnan(static_cast<double>(value))) {
        return "NaN";  // as Python's json reads it
    }
    std::ostringstream out;
    out << std::setprecision(17) << value;
    return out.str();
}

template <typename Value>
std::string list(const std::vector<Value> &values) {
    std::string found = "[";
    for (const Value &one : values) {
        found += (found.size() > 1 ? "," : "") + json(one);
    }
    return found + "]";
}

template <typename Value>
std::string values_of(Tango::DeviceAttribute &attribute) {
    std::vector<Value> values;
    attribute.extract_read(values);
    return list(values);
}

std::string values_of(Tango::DeviceAttribute &attribute) {
    switch (attribute.get_type()) {
    case Tango::DEV_BOOLEAN: return values_of<bool>(attribute);
    case Tango::DEV_ENUM: return values_of<Tango::DevShort>(attribute);
    case Tango::DEV_SHORT: return values_of<Tango::DevShort>(attribute);
    case Tango::DEV_LONG: return values_of<Tango::DevLong>(attribute);
    case Tango::DEV_LONG64: return values_of<Tango::DevLong64>(attribute);
    case Tango::DEV_ULONG64: return values_of<Tango::DevULong64>(attribute);
    case Tango::DEV_FLOAT: return values_of<Tango::DevFloat>(attribute);
    case Tango::DEV_DOUBLE: return values_of<Tango::DevDouble>(attribute);
    case Tango::DEV_STRING: return values_of<std::string>(attribute);
    case Tango::DEV_STATE: {  // a list of states is empty for the State of a device
        Tango::DevState state = Tango::UNKNOWN;
        attribute >> state;
        return "[" + json(state) + "]";
    }
    default: return "\"a type that this client does not know\"";
    }
}

std::string content(Tango::DeviceAttribute &attribute) {
    static const char *const names[] = {"VALID", "INVALID", "ALARM", "CHANGING", "WARNING"};
    const Tango::AttrQuality quality = attribute.get_quality();
    std::string found = "\"quality\":" + json(names[quality]);
    if (quality != Tango::ATTR_INVALID) {
        found += ",\"columns\":" + json(attribute.get_dim_x()) + ",\"rows\":" + json(attribute.get_dim_y());
        found += ",\"value\":" + values_of(attribute);
    }
    return found;
}

std::string failed(const Tango::DevErrorList &errors) {
    return "\"failed\":" + json(errors[0].desc.in()) + ",\"reason\":" + json(errors[0].reason.in());
}

class Listener : public Tango::CallBack {
  public:
    explicit Listener(std::string name) : name_(std::move(name)) {}

    void push_event(Tango::EventData *event) override {
        const std::string what = event->err ? failed(event->errors) : content(*event->attr_value);
        print("\"event\":" + json(name_) + "," + what);
    }

  private:
    std::string name_;
};

// Tango's library takes texts that it might change: so none of them is const.
Tango::DeviceProxy &proxy(std::string &device) {
    static std::map<std::string, std::unique_ptr<Tango::DeviceProxy>> proxies;
    auto &found = proxies[device];
    if (!found) {
        found = std::make_unique<Tango::DeviceProxy>(device);
    }
    return *found;
}

std::string command(std::vector<std::string> &words) {
    Tango::DeviceData argument;
    if (words.size() > 3) {
        argument << words[3];
    }
    Tango::DeviceData answer =
        words.size() > 3 ? proxy(words[1]).command_inout(words[2], argument) : proxy(words[1]).command_inout(words[2]);
    if (answer.get_type() == Tango::DEV_STRING) {
        std::string text;
        answer >> text;
        return "\"texts\":[" + json(text) + "]";
    }
    std::vector<Tango::DevLong> numbers;
    std::vector<std::string> texts;
    answer.extract(numbers, texts);
    return "\"numbers\":" + list(numbers) + ",\"texts\":" + list(texts);
}

std::string answer(std::vector<std::string> &words) {
    if (words[0] == "read") {
        Tango::DeviceAttribute found = proxy(words[1]).read_attribute(words[2]);
        return content(found);
    }
    if (words[0] == "command") {
        return command(words);
    }
    if (words[0] == "subscribe") {
        static std::vector<std::unique_ptr<Listener>> listeners;
        listeners.push_back(std::make_unique<Listener>(words[2]));
        return "\"id\":" + json(proxy(words[1]).subscribe_event(words[2], Tango::CHANGE_EVENT, listeners.back().get()));
    }
    return "\"failed\":" + json("no such request: " + words[0]);
}

}  // namespace

int main() {
    std::string line;
    while (std::getline(std::cin, line)) {
        std::vector<std::string> words;
        std::istringstream source(line);
        for (std::string word; std::getline(source, word, '\t');) {
            words.push_back(word);
        }
        try {
            print(answer(words));
        } catch (const Tango::DevFailed &error) {
            print(failed(error.errors));
        }
    }
    std::_Exit(0);  // the library's threads would go on
}

// Displays that all browsers share: the server of the page keeps them, with versions. Everybody sees them, operators change
// them. Each object has the number of the version that was read, so that the server can refuse to replace a newer one.

import { act, ask, barred, onNews, store, utc } from "../store.js";

const SPACE = "shared";
const ROOT = { namespace: SPACE, key: "root" };
const isShared = (identifier) => identifier.namespace === SPACE;
const why = () => barred("operator", "Sign in as operator on the page to change displays of everybody.");

const objectOf = ({ id, version, model }) => ({ ...model, identifier: { namespace: SPACE, key: id }, storedVersion: version });

async function get({ key }) {
  const found = await ask("display", { id: key });
  if (found.model) return objectOf(found);
  return key === ROOT.key
    ? { identifier: ROOT, name: "Displays of everybody", type: "folder", location: "ROOT", composition: [], storedVersion: 0 }
    : undefined;
}

function provider(openmct) {
  const saved = new Map(); // by key: the save before, as each is based on the version that it gives
  // Gives each copy of an object on this page a version; Open MCT makes the others alike, with what it changes in one.
  const show = (object, version) => {
    const all = openmct.objects.toMutable(Object.assign(object, version));
    all.$refresh({ ...object });
    if (!object.isMutable) openmct.objects.destroyMutable(all);
  };
  async function save(object, base) {
    const { identifier, storedVersion = 0, ...model } = object;
    try {
      const { version, model: { composition } } = await act("display", { id: identifier.key, version: base ?? storedVersion, model });
      show(object, { storedVersion: version, ...(composition && { composition }) }); // with what others have added
      return true;
    } catch (error) {
      openmct.notifications.error(error.message);
      const newest = await get(identifier).catch(() => null);
      if (newest) show(object, newest); // what was refused must not look kept
      throw error;
    }
  }
  const inTurn = (object, base) => {
    const { key } = object.identifier;
    const next = (saved.get(key) ?? Promise.resolve()).catch(() => {}).then(() => save(object, base));
    saved.set(key, next);
    return next;
  };
  return { get, create: (object) => inTurn(object, 0), update: (object) => inTurn(object), isReadOnly: () => Boolean(why()) };
}

// Puts an older version of a display in the place of the newest one, as a new version.
const versionsAction = (openmct) => ({
  key: "sdp.versions", name: "Older Versions…", cssClass: "icon-clock", group: "action", priority: 1,
  description: "Bring an older version of this display back.",
  appliesTo: ([object]) => isShared(object.identifier) && !why(),
  async invoke([object]) {
    const { key } = object.identifier;
    try {
      const [newest, ...older] = await ask("display-versions", { id: key });
      if (!older.length) return openmct.notifications.info("There is no older version.");
      const options = older.map((one) => ({ value: one.version, name: `${one.version}: ${one.name}, ${one.person}, ${utc(one.time)}` }));
      const chosen = await openmct.forms.showForm({
        title: `Bring back a version of ${newest.name}`,
        sections: [{ rows: [{ key: "version", name: "Version", control: "select", options, value: options[0].value }] }],
      }).catch(() => null); // it was cancelled
      if (!chosen) return undefined;
      const { model } = await ask("display", { id: key, version: chosen.version ?? options[0].value });
      await act("display", { id: key, version: newest.version, model });
      return location.reload(); // each view of it has the older version then
    } catch (error) {
      return openmct.notifications.error(error.message);
    }
  },
});

// Where displays are kept, for the person who makes one.
function note(openmct) {
  const mark = openmct.indicators.simpleIndicator();
  const say = () => mark.text(store.site.displays ? why() : "Displays are kept in this browser only.");
  openmct.indicators.add(mark);
  onNews(say);
  say();
}

export function sharedDisplays(openmct) {
  if (store.site.displays) {
    openmct.objects.addRoot(ROOT);
    openmct.objects.addProvider(SPACE, provider(openmct));
    openmct.actions.register(versionsAction(openmct));
  }
  openmct.on("start", () => note(openmct));
}

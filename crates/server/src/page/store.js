// What the browser keeps: conversations and settings.

const KEPT = "onebit";

function load(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(`${KEPT}.${name}`)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

function keep(name, value) {
  try {
    localStorage.setItem(`${KEPT}.${name}`, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

const store = {
  talks: load("talks", []),
  settings: load("settings", {}),
  model: load("model", null),
  here: null,

  /** Writes everything; when the browser's room is spent, the oldest conversations make way. */
  save() {
    keep("settings", this.settings);
    keep("model", this.model);
    while (!keep("talks", this.talks) && this.talks.length > 1) {
      const oldest = this.talks.reduce((a, b) => (a.changed < b.changed && a !== this.here ? a : b));
      this.talks.splice(this.talks.indexOf(oldest), 1);
    }
  },

  /** Takes over what another page has written, lest this one writes over it. True when conversations have changed. One that was
   * deleted there while it is open here comes back with its next words. */
  take({ key, newValue }) {
    if (key === `${KEPT}.settings`) this.settings = load("settings", {});
    if (key !== `${KEPT}.talks` || newValue === null) return false;
    const mine = new Map(this.talks.map(talk => [talk.id, talk])), here = this.here;
    this.talks = load("talks", []).map(talk => (mine.get(talk.id)?.changed >= talk.changed ? mine.get(talk.id) : talk));
    this.here = this.talks.find(talk => talk.id === here.id) || here;
    return true;
  },

  begin() {
    this.here = { id: crypto.randomUUID ? crypto.randomUUID() : String(Math.random()), title: "", messages: [], changed: Date.now() };
    return this.here;
  },

  /** A conversation counts once something has been said in it. */
  touch() {
    const talk = this.here;
    talk.changed = Date.now();
    if (!talk.title) talk.title = (talk.messages.find(m => m.role === "user")?.content || "").trim().replace(/\s+/g, " ").slice(0, 80);
    if (!this.talks.includes(talk) && talk.messages.length) this.talks.push(talk);
    this.save();
  },

  drop(talk) {
    this.talks = this.talks.filter(other => other !== talk);
    this.save();
  },
};

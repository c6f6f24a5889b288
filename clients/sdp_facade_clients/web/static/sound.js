// One short tone for new alarms, by the worst severity, at most one a second; silent until a person switches it on.

import { html } from "./vendor/lit-html.js";
import { redraw } from "./app.js";

let audio = null;
let beeped = -Infinity;
let due = null; // severity of the tone that is played next
const APART_MS = 1000; // between two tones
const TONES = { CRITICAL: 880, ALARM: 660, WARNING: 440 };

export function soundButton() {
  const turn = () => { audio = audio ? null : new AudioContext(); redraw(); };
  return html`<button aria-pressed=${audio ? "true" : "false"} @click=${turn}>${audio ? "Sound on" : "Sound off"}</button>`;
}

// `told` gives the new alarms; it is asked only while the sound is on. What comes less than a second after a tone has its own.
export function sound(told) {
  if (!audio) return;
  const some = told();
  const worst = Object.keys(TONES).find((severity) => severity === due || some.some((one) => one.severity === severity));
  if (worst && !due) setTimeout(play, beeped + APART_MS - performance.now());
  due = worst ?? null;
}

function play() {
  const frequency = TONES[due];
  due = null;
  if (!audio) return;
  beeped = performance.now();
  const tone = audio.createOscillator();
  const volume = audio.createGain();
  volume.gain.value = 0.1;
  tone.frequency.value = frequency;
  tone.connect(volume).connect(audio.destination);
  tone.start();
  tone.stop(audio.currentTime + 0.25);
}

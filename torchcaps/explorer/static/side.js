// One side of the page: a model, its panels and its requests, one in flight per question.

import { make } from "./draw.js";
import { PANELS } from "./panels.js";
import { savePanel } from "./save.js";

const LATE = 400; // milliseconds after which a panel says that it shows an earlier image

export class Side {
  constructor(/** @type {"a" | "b"} */ key, page) {
    this.key = key;
    this.page = page;
    this.colour = `var(--${key})`;
    this.about = null;
    this.image = null;
    this.predicted = null;
    this.panels = [];
    this.waiting = {}; // by question: the newest request that waits while another is in flight
    this.flying = {};
    this.later = this.rest = 0;
  }

  get elements() { return this.panels.map((p) => p.element); }

  /** Show the panels of another model. */
  open(about) {
    this.about = about;
    this.predicted = this.likeliest = null;
    this.panels = about ? PANELS.filter((p) => p.applies(about)).map((p) => this.panel(p)) : [];
  }

  panel(kind) {
    const made = kind.make(this, this.page);
    const state = make("p", { class: "error", hidden: true });
    const which = make("p", { class: "which", hidden: true }); // the image of an answer that is late
    const save = make("button", { type: "button", class: "save", "aria-label": `save ${kind.title} of ${this.about.name}` }, "save");
    const title = make("h2", {}, `${this.key.toUpperCase()}: ${kind.title}`);
    const words = kind.words(this.about);
    const element = make("details", { class: `panel side-${this.key}${kind.narrow ? " narrow" : ""}`, open: !kind.closed, "data-panel": kind.name },
      make("summary", {}, title, save), words ? make("p", { class: "words" }, words) : "", which, state,
      make("div", { class: "body" }, made.body));
    save.addEventListener("click", (event) => {
      event.preventDefault();
      savePanel(made.body, `${this.about.id}-${kind.name}`.replaceAll(":", "-"), this.page.provenance(this));
    });
    const panel = { kind, ...made, element, state, which, visible: true, seen: null };
    element.addEventListener("toggle", () => element.open && this.refresh(panel));
    new IntersectionObserver(([entry]) => {
      const appeared = entry.isIntersecting && !panel.visible;
      panel.visible = entry.isIntersecting;
      if (appeared) this.refresh(panel);
    }, { rootMargin: "200px" }).observe(element);
    return panel;
  }

  get open_panels() { return this.panels.filter((p) => p.element.open && p.visible); }

  /** Update visible panels for a new image: quick ones now, slow ones four times a second, those of
   * a search when the image rests. words: what was done to the image; rotation: its angle */
  look(image, /** @type {string} */ words, /** @type {number} */ rotation) {
    this.image = { ...image, words, rotation, time: performance.now() };
    for (const panel of this.open_panels) if (!panel.kind.slow) this.refresh(panel);
    this.later ||= setTimeout(() => {
      this.later = this.rest = 0;
      for (const panel of this.open_panels) if (panel.kind.slow && !panel.kind.rests) this.refresh(panel);
    }, 250);
    clearTimeout(this.rest);
    this.rest = setTimeout(() => {
      for (const panel of this.open_panels) if (panel.kind.rests) this.refresh(panel);
      this.panels.forEach((p) => this.mark(p));
    }, LATE + 50);
    this.panels.forEach((p) => this.mark(p));
  }

  /** Say which image a panel shows if that has not been the current one for a while. */
  mark(panel) {
    const late = Boolean(panel.seen) && panel.seen !== this.image && performance.now() - panel.seen.time > LATE;
    panel.element.classList.toggle("old", late);
    panel.which.hidden = !late;
    if (late) panel.which.textContent = `Shows ${panel.seen.words}.`;
  }

  async refresh(panel) {
    if (!this.image) return;
    const about = this.about, image = this.image;
    try {
      const answers = {};
      for (const question of panel.kind.questions) {
        const inputs = { image: { shape: image.shape, data: image.data }, ...(panel.inputs ? panel.inputs() : {}) };
        answers[question] = await this.ask(question, inputs, image);
        if (!answers[question] || this.about !== about) return; // a newer answer will follow
      }
      panel.state.hidden = true;
      await panel.update(answers, image);
      panel.seen = image;
      this.mark(panel);
      panel.element.dataset.ready = String(Number(panel.element.dataset.ready || 0) + 1);
      this.page.answered();
    } catch (error) {
      if (error.status === 202 || error.status === 503) return void setTimeout(() => this.refresh(panel), 500);
      if (error.status === 0) return this.page.gone(error.message);
      panel.state.textContent = error.message;
      panel.state.hidden = false;
    }
  }

  /** The answer, or null if a newer request replaced this one. Panels with the same question about
   * one image share the answer. */
  ask(question, inputs, share = null) {
    const now = this.flying[question];
    if (now && share && now.share === share && !inputs.hidden) return now.answer;
    if (now) {
      if (this.waiting[question] && !(share && this.waiting[question].share === share)) this.waiting[question].done(null);
      else if (this.waiting[question] && share && !inputs.hidden) return this.waiting[question].answer;
      else if (this.waiting[question]) this.waiting[question].done(null);
      const next = { share, inputs };
      next.answer = new Promise((done, failed) => Object.assign(next, { done, failed }));
      this.waiting[question] = next;
      return next.answer;
    }
    const answer = this.page.backend.ask(this.about.id, question, inputs);
    this.flying[question] = { share, answer };
    const over = () => {
      delete this.flying[question];
      const next = this.waiting[question];
      delete this.waiting[question];
      if (next) this.ask(question, next.inputs, next.share).then(next.done, next.failed);
    };
    answer.then(over, over);
    return answer;
  }
}

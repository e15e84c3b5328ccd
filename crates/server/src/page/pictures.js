// Pictures: the wish, the request, and how they are shown.

/** Pictures of messages: the browser's own store has too little room for them, so they live as long as the page. */
const paintings = new WeakMap();
/** Their places in the page, which stay while others are made. */
const figures = new WeakMap();

const PICTURE_IDEAS = ["A bonsai tree on a wooden desk, morning light", "A lighthouse in a storm, oil painting", "A red fox in fresh snow", "A quiet street in the rain, at night"];

const paints = model => model?.kind === "image";

/** What the fields below the message box say. */
function pictureWish() {
  const field = name => document.querySelector(`#picture [name="${name}"]`).value.trim();
  return { size: field("size"), steps: number(field("steps")), seed: number(field("seed")), n: number(field("n")) ?? 1 };
}

function pictureMessage(prompt, wish) {
  return { role: "assistant", content: "", prompt, size: wish.size, steps: wish.steps, count: wish.n, pictures: [] };
}

const pictureRequest = (message, wish, model) => ({ model, prompt: message.prompt, size: wish.size, steps: wish.steps, seed: wish.seed, n: wish.n, stream: true });

/** Takes an event of a stream of pictures in. */
function takePicture(job, event, soon) {
  const message = job.message;
  if (event.error) throw new Refused(event.error.message);
  if (event.type === "image_generation.progress") job.stage = event;
  if (event.type === "image_generation.completed") {
    job.stage = null;
    message.steps = event.steps;
    message.size = event.size;
    message.pictures.push({ seed: event.seed, seconds: event.seconds });
    paintings.set(message.pictures.at(-1), `data:image/png;base64,${event.b64_json}`);
  }
  soon();
}

function stageWords(job) {
  const message = job.message;
  const which = message.count > 1 ? `Picture ${message.pictures.length + 1} of ${message.count}: ` : "";
  const stage = job.stage;
  if (!stage) return { words: `${which}waiting for its turn` };
  if (stage.stage === "prompt") return { words: `${which}reading the prompt` };
  if (stage.stage === "pixels") return { words: `${which}making pixels`, done: stage.steps, total: stage.steps };
  return { words: `${which}step ${Math.min(stage.step + 1, stage.steps)} of ${stage.steps}`, done: stage.step, total: stage.steps };
}

/** The pictures of a message, and how far the next one is. `again` makes them once more. */
function gallery(message, job, again) {
  const node = element("div", { class: "gallery" });
  const [width, height] = (message.size || "1x1").split("x");
  message.pictures.forEach((picture, index) => {
    if (figures.has(picture)) return void node.append(figures.get(picture));
    const source = paintings.get(picture);
    const name = `picture-${picture.seed}.png`;
    const words = [`seed ${picture.seed}`, picture.seconds ? seconds(picture.seconds * 1000) : null].filter(Boolean).join(" · ");
    const useSeed = element("button", { class: "quiet", type: "button", onclick: () => {
      document.querySelector('#picture [name="seed"]').value = picture.seed;
      $("text").value = message.prompt;
      grow();
      $("text").focus();
    } }, "Use this seed");
    const figure = source
      ? element("figure", {}, element("img", { src: source, width, height, alt: message.prompt }),
        element("figcaption", {}, element("span", {}, words), element("a", { class: "quiet", href: source, download: name }, "Save"), useSeed))
      : element("figure", {}, element("div", { class: "gone", style: `aspect-ratio:${width}/${height}` },
        element("p", {}, "This page no longer has the picture, but it can be made again from its seed."),
        index === 0 ? element("button", { class: "plain", type: "button", onclick: again }, message.pictures.length > 1 ? "Make them again" : "Make it again") : null),
      element("figcaption", {}, element("span", {}, words)));
    figures.set(picture, figure);
    node.append(figure);
  });
  if (job) {
    const { words, done, total } = stageWords(job);
    const clock = seconds(performance.now() - job.began);
    node.append(element("div", { class: "reading" }, element("span", {}, `${words} · ${clock}`), total ? element("progress", { max: total, value: done, "aria-label": "Steps done" }) : null));
  }
  return node;
}

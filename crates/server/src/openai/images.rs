//! `POST /v1/images/generations`: pictures from text.

use crate::app::{App, cut_off};
use crate::body::Sent;
use crate::error::{ApiError, Dialect};
use crate::fields::{self, Refusal};
use crate::id;
use crate::painter::{ENDED, Painter, PictureEvent, PictureJob};
use crate::picture::{Picture, PictureDefaults, PictureError, PictureOrder, PictureStage};
use crate::stream::{Frames, streamed};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use futures_util::stream::unfold;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, watch};

#[derive(Debug, Default, Deserialize)]
struct Fields {
    model: Option<String>,
    prompt: Option<String>,
    n: Option<i64>,
    size: Option<String>,
    seed: Option<i64>,
    steps: Option<i64>,
    guidance: Option<f32>,
    stream: Option<bool>,
}

const REFUSED: [Refusal; 11] = [
    Refusal {
        field: "response_format",
        harmless: base64_only,
        why: "this server keeps no files, so there is no URL to give; ask for b64_json",
    },
    Refusal { field: "output_format", harmless: png_only, why: "pictures are PNG files" },
    Refusal { field: "output_compression", harmless: all_of_it, why: "PNG loses nothing; leave it out" },
    Refusal { field: "background", harmless: opaque, why: "pictures are opaque" },
    Refusal { field: "quality", harmless: usual, why: "set `steps`" },
    Refusal { field: "style", harmless: fields::empty, why: "say it in the prompt" },
    Refusal { field: "moderation", harmless: unmoderated, why: "this server moderates nothing" },
    Refusal {
        field: "partial_images",
        harmless: fields::empty,
        why: "a stream tells the steps, without pictures of them",
    },
    Refusal { field: "negative_prompt", harmless: fields::empty, why: "say in the prompt what there should be" },
    Refusal { field: "image", harmless: fields::empty, why: "pictures are made from text alone" },
    Refusal { field: "mask", harmless: fields::empty, why: "pictures are made from text alone" },
];

fn base64_only(value: &Value) -> bool {
    value == "b64_json"
}

fn png_only(value: &Value) -> bool {
    value == "png"
}

fn all_of_it(value: &Value) -> bool {
    value == 100
}

fn opaque(value: &Value) -> bool {
    value == "auto" || value == "opaque"
}

fn usual(value: &Value) -> bool {
    value == "auto" || value == "standard"
}

fn unmoderated(value: &Value) -> bool {
    value == "auto" || value == "low"
}

/// Pictures that one request may ask for, as in OpenAI's API.
const MOST: i64 = 10;

/// The handler.
pub(crate) async fn generate(State(app): State<Arc<App>>, body: Sent) -> Result<Response, ApiError> {
    let object = body.object()?;
    let fields: Fields = fields::read(&object, &REFUSED)?;
    drop(object);
    let prompt = fields.prompt.clone().filter(|prompt| !prompt.trim().is_empty());
    let prompt = prompt.ok_or_else(|| ApiError::field("prompt", "is missing: say what the picture should show"))?;
    let count = match fields.n.unwrap_or(1) {
        n @ 1..=MOST => n as u64,
        n => return Err(ApiError::field("n", format!("must be from 1 to {MOST}, got {n}"))),
    };
    let size = size(fields.size.as_deref())?;
    let (name, painter) = app.catalog.get_painter(fields.model.as_deref()).await?;
    let order = order(&fields, prompt, size, painter.defaults)?;
    let checked = (Arc::clone(&painter.check), order.clone());
    // Reading a long prompt takes a while.
    let verdict = tokio::task::spawn_blocking(move || checked.0(&checked.1)).await;
    verdict.unwrap_or_else(|panic| Err(PictureError::Failed(panic.to_string())))?;
    if app.options.log_prompts {
        tracing::info!(model = name, prompt = order.prompt, "picture");
    }
    let gallery = Gallery::order(&app, &painter, &order, count)?;
    tracing::info!(
        model = name,
        width = order.width,
        height = order.height,
        count,
        seed = order.seed,
        "pictures ordered"
    );
    if fields.stream == Some(true) { Ok(stream(gallery, app.options.keep_alive)) } else { gallery.whole().await }
}

/// `/v1/images/edits` and `/v1/images/variations`.
pub(crate) async fn edit() -> ApiError {
    ApiError::bad(
        "pictures are made from text alone: this server edits no pictures and makes no variations of them; \
         POST /v1/images/generations takes a prompt",
    )
}

fn order(
    fields: &Fields,
    prompt: String,
    size: Option<(usize, usize)>,
    defaults: PictureDefaults,
) -> Result<PictureOrder, ApiError> {
    let (width, height) = size.unwrap_or((defaults.width, defaults.height));
    let steps = match fields.steps {
        None => defaults.steps,
        Some(steps) => usize::try_from(steps)
            .ok()
            .filter(|steps| *steps > 0)
            .ok_or_else(|| ApiError::field("steps", format!("must be at least 1, got {steps}")))?,
    };
    let seed = match fields.seed {
        None | Some(-1) => id::fresh_seed(),
        Some(seed) => u64::try_from(seed).map_err(|_| {
            ApiError::field("seed", format!("must be a whole number from 0, or -1 for a fresh one, got {seed}"))
        })?,
    };
    let guidance = fields.guidance.unwrap_or(defaults.guidance);
    Ok(PictureOrder { prompt, width, height, steps, guidance, seed })
}

/// `WIDTHxHEIGHT`; `auto` is the model's own.
fn size(text: Option<&str>) -> Result<Option<(usize, usize)>, ApiError> {
    let Some(text) = text.filter(|text| *text != "auto") else { return Ok(None) };
    let pair = text.split_once(['x', 'X', '×']);
    match pair.and_then(|(width, height)| Some((width.trim().parse().ok()?, height.trim().parse().ok()?))) {
        Some((width, height)) => Ok(Some((width, height))),
        None => Err(ApiError::field("size", format!("must be WIDTHxHEIGHT such as 512x512, or auto, got `{text}`"))),
    }
}

impl From<PictureError> for ApiError {
    fn from(error: PictureError) -> Self {
        match error {
            PictureError::Order { field, message } => ApiError::field(field, message),
            PictureError::Cancelled => ApiError::unavailable("the picture was cut off: the server is shutting down"),
            PictureError::NoRoom(message) => ApiError::unavailable(message),
            PictureError::Failed(message) => ApiError::internal(message),
        }
    }
}

/// The pictures of one request, made one after the other with seeds that follow each other.
struct Gallery {
    jobs: VecDeque<(PictureJob, OwnedSemaphorePermit)>,
    order: PictureOrder,
    done: u64,
    created: u64,
    /// Becomes true when the server ends before the pictures are done.
    cut: watch::Receiver<bool>,
}

/// What happened to one of them.
struct Happening {
    index: u64,
    event: PictureEvent,
}

impl Gallery {
    fn order(app: &App, painter: &Painter, order: &PictureOrder, count: u64) -> Result<Self, ApiError> {
        let orders = (0..count).map(|i| PictureOrder { seed: order.seed.wrapping_add(i), ..order.clone() });
        let places: Vec<_> = (0..count).map(|_| app.place()).collect::<Result<_, ApiError>>()?;
        let jobs = orders.zip(places).map(|(order, place)| Ok((painter.submit(order)?, place)));
        let jobs = jobs.collect::<Result<_, String>>().map_err(ApiError::internal)?;
        Ok(Self { jobs, order: order.clone(), done: 0, created: id::unix_time(), cut: app.cut.subscribe() })
    }

    /// What happens next; nothing follows a failure or the last picture.
    async fn next(&mut self) -> Option<Happening> {
        let index = self.done;
        let (job, _) = self.jobs.front_mut()?;
        let told = tokio::select! {
            told = job.next() => told,
            () = cut_off(&mut self.cut) => Some(PictureEvent::Failed(PictureError::Cancelled)),
        };
        let event = told.unwrap_or_else(|| PictureEvent::Failed(PictureError::Failed(ENDED.to_owned())));
        match &event {
            PictureEvent::Stage(_) => {}
            PictureEvent::Done(_) => {
                self.done += 1;
                self.jobs.pop_front();
            }
            PictureEvent::Failed(_) => self.jobs.clear(),
        }
        Some(Happening { index, event })
    }

    async fn whole(mut self) -> Result<Response, ApiError> {
        let mut data = Vec::new();
        while let Some(Happening { index, event }) = self.next().await {
            match event {
                PictureEvent::Stage(_) => {}
                PictureEvent::Done(picture) => data.push(self.entry(index, &picture)),
                PictureEvent::Failed(error) => return Err(failure(error)),
            }
        }
        let mut whole = self.head();
        whole["created"] = json!(self.created);
        whole["data"] = json!(data);
        Ok(Json(whole).into_response())
    }

    /// What OpenAI's API tells of all pictures alike.
    fn head(&self) -> Value {
        json!({
            "size": format!("{}x{}", self.order.width, self.order.height),
            "output_format": "png",
            "background": "opaque",
            "quality": "auto",
            "steps": self.order.steps,
        })
    }

    /// One picture.
    fn entry(&self, index: u64, picture: &Picture) -> Value {
        json!({
            "b64_json": BASE64.encode(&picture.png),
            "seed": self.order.seed.wrapping_add(index),
            "prompt_tokens": picture.prompt_tokens,
            "seconds": picture.seconds,
        })
    }

    fn write(&self, Happening { index, event }: Happening, out: &mut Frames) {
        match event {
            PictureEvent::Stage(stage) => {
                let name = "image_generation.progress";
                let (word, done) = match stage {
                    PictureStage::Prompt => ("prompt", 0),
                    PictureStage::Steps { done, .. } => ("steps", done),
                    PictureStage::Pixels => ("pixels", self.order.steps),
                };
                let data =
                    json!({"type": name, "index": index, "stage": word, "step": done, "steps": self.order.steps});
                out.event(name, &data);
            }
            PictureEvent::Done(picture) => {
                let name = "image_generation.completed";
                let mut data = self.head();
                data["type"] = json!(name);
                data["index"] = json!(index);
                data["created_at"] = json!(self.created);
                for (key, value) in self.entry(index, &picture).as_object().into_iter().flatten() {
                    data[key] = value.clone();
                }
                out.event(name, &data);
                if self.jobs.is_empty() {
                    out.done();
                }
            }
            PictureEvent::Failed(error) => {
                out.event("error", &failure(error).body(Dialect::OpenAi));
                out.done();
            }
        }
    }
}

/// What fails while a picture is made is no fault of the client, but an order that turns out not to fit is.
fn failure(error: PictureError) -> ApiError {
    let error = ApiError::from(error);
    if error.status == StatusCode::INTERNAL_SERVER_ERROR {
        tracing::error!(error = error.message, "no picture");
    }
    error
}

fn stream(gallery: Gallery, keep_alive: Duration) -> Response {
    let body = unfold((gallery, Frames::default()), move |(mut gallery, mut frames)| async move {
        loop {
            if let Some(frame) = frames.pop() {
                return Some((Ok::<_, Infallible>(frame), (gallery, frames)));
            }
            match tokio::time::timeout(keep_alive, gallery.next()).await {
                Ok(Some(happening)) => gallery.write(happening, &mut frames),
                Ok(None) => return None,
                Err(_) => frames.comment("keep-alive"),
            }
        }
    });
    streamed("text/event-stream", body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(size(None), Ok(None));
        assert_eq!(size(Some("auto")), Ok(None));
        assert_eq!(size(Some("512x768")), Ok(Some((512, 768))));
        for wrong in ["", "512", "x", "512x", "-1x512", "512x512x3", "a x b", "5.5x5"] {
            let error = size(Some(wrong)).expect_err(wrong);
            assert_eq!(error.param.as_deref(), Some("size"));
        }
    }

    #[test]
    fn seeds() {
        let defaults = PictureDefaults { width: 64, height: 64, steps: 4, guidance: 1.0 };
        let seed = |seed| order(&Fields { seed, ..Fields::default() }, String::new(), None, defaults).map(|o| o.seed);
        assert_eq!(seed(Some(7)), Ok(7));
        assert!(seed(Some(-2)).is_err());
        assert_ne!(seed(None), seed(Some(-1)), "a fresh one for each request");
    }
}

//! A scripted source of pictures: a gradient whose colours come from the seed.

use onebit_server::{
    Card, LoadError, Loaded, ModelEntry, ModelKind, Picture, PictureDefaults, PictureError, PictureOrder,
    PictureSource, PictureStage,
};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What the source has seen.
#[derive(Debug, Default)]
pub(crate) struct Painted {
    pub(crate) orders: Vec<PictureOrder>,
    pub(crate) steps: usize,
    pub(crate) stopped: usize,
    pub(crate) under_way: bool,
}

/// Paints, one step in a time.
pub(crate) struct Brush {
    pub(crate) seen: Arc<Mutex<Painted>>,
    pub(crate) pace: Duration,
}

/// Words that a prompt may have.
pub(crate) const MOST_WORDS: usize = 512;

impl PictureSource for Brush {
    fn make(
        &mut self,
        order: &PictureOrder,
        watch: &mut dyn FnMut(PictureStage) -> ControlFlow<()>,
    ) -> Result<Picture, PictureError> {
        {
            let mut seen = self.seen.lock().expect("no panic");
            seen.orders.push(order.clone());
            seen.under_way = true;
        }
        let end = self.paint(order, watch);
        let mut seen = self.seen.lock().expect("no panic");
        seen.under_way = false;
        seen.stopped += usize::from(end == Err(PictureError::Cancelled));
        end
    }
}

impl Brush {
    fn paint(
        &self,
        order: &PictureOrder,
        watch: &mut dyn FnMut(PictureStage) -> ControlFlow<()>,
    ) -> Result<Picture, PictureError> {
        let mut tell = |stage| match watch(stage) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(PictureError::Cancelled),
        };
        tell(PictureStage::Prompt)?;
        for done in 1..=order.steps {
            std::thread::sleep(self.pace);
            self.seen.lock().expect("no panic").steps += 1;
            if order.prompt.contains("fail") {
                return Err(PictureError::Failed("transformer, step 1: NaN; the weights are damaged".to_owned()));
            }
            assert!(!order.prompt.contains("panic"), "asked for");
            tell(PictureStage::Steps { done, total: order.steps })?;
        }
        tell(PictureStage::Pixels)?;
        let prompt_tokens = order.prompt.split_whitespace().count();
        Ok(Picture { png: gradient(order), prompt_tokens, seconds: 0.5 })
    }
}

fn gradient(order: &PictureOrder) -> Vec<u8> {
    let (width, height) = (order.width, order.height);
    let wheel = |turn: f64| [0.0, 2.1, 4.2].map(|phase: f64| 0.55 + 0.4 * (turn + phase).sin());
    let (sky, ground) = (wheel(order.seed as f64 * 1.7), wheel(order.seed as f64 * 1.7 + 2.6));
    let mut rgb = Vec::with_capacity(width * height * 3);
    for y in 0..height {
        for x in 0..width {
            let (u, v) = (x as f64 / width as f64, y as f64 / height as f64);
            let hill = 0.62 + 0.08 * (u * 7.0 + order.seed as f64).sin() + 0.03 * (u * 23.0).sin();
            let far = (u - 0.7).hypot((v - 0.28) * height as f64 / width as f64) < 0.09;
            for channel in 0..3 {
                let value = if v > hill {
                    ground[channel] * (0.5 + 0.5 * v)
                } else if far {
                    0.97
                } else {
                    sky[channel] * (1.0 - 0.35 * v)
                };
                rgb.push((value.clamp(0.0, 1.0) * 255.0) as u8);
            }
        }
    }
    let mut out = Vec::new();
    let mut encoder = png::Encoder::new(&mut out, width as u32, height as u32);
    encoder.set_color(png::ColorType::Rgb);
    let mut writer = encoder.write_header().expect("a header");
    writer.write_image_data(&rgb).expect("pixels");
    writer.finish().expect("an end");
    out
}

fn check(order: &PictureOrder) -> Result<(), PictureError> {
    let wrong = |field, message: String| Err(PictureError::Order { field, message });
    if !order.width.is_multiple_of(16) || !order.height.is_multiple_of(16) || order.width * order.height == 0 {
        return wrong("size", format!("{}x{} is no multiple of 16", order.width, order.height));
    }
    match order.prompt.split_whitespace().count() {
        words if words > MOST_WORDS => wrong("prompt", format!("{words} tokens, at most {MOST_WORDS} are read")),
        _ => Ok(()),
    }
}

/// A model called `brush` that is loaded when it is first asked for.
pub(crate) fn entry(seen: &Arc<Mutex<Painted>>, pace: Duration) -> ModelEntry {
    let seen = Arc::clone(seen);
    let defaults = PictureDefaults { width: 512, height: 512, steps: 4, guidance: 1.0 };
    let loader = move || {
        let seen = Arc::clone(&seen);
        let loaded = Loaded::pictures(move || Brush { seen, pace }, Arc::new(check), defaults);
        loaded.map_err(|e| LoadError::Failed(e.to_string()))
    };
    let card = Card { kind: ModelKind::Image, architecture: "flux2".into(), ..Card::default() };
    ModelEntry::new("brush", card, Box::new(loader))
}

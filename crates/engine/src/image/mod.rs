//! Pictures from prompts: the parts of an image model in turn, on one device.
//!
//! [`ImageModel::open`] reads headers only. [`ImageModel::plan`] says what a picture will need, and
//! [`ImageModel::generate`] makes it: prompt -> text encoder -> steps of the transformer -> VAE decoder. Either all parts stay
//! loaded, or each is loaded, run and freed in turn (`low_memory`).

mod decode;
mod error;
mod model;
mod plan;
mod prompt;
mod request;
mod run;

pub use error::ImageError;
pub use model::{ImageModel, ImageOptions, ImageTree};
pub use plan::{ImagePlan, PlanPart};
pub use request::{ImageEvent, ImageRequest, ImageSettings, Picture, Residency};

//! The model that runs when none is named. This build has none: the place where one would be found says how to get one.

use crate::Usage;
use crate::resolve::Located;
use anyhow::{Result, bail};

/// The built-in model.
///
/// # Errors
/// [`Usage`] that says how to get a model, because none is built in.
pub fn default_model() -> Result<Located> {
    bail!(Usage(
        "no model is named, and this build has none built in; `onebit pull bonsai-1.7b` downloads the smallest one \
         (269 MB), and then `-m bonsai-1.7b` names it"
            .to_owned()
    ))
}

//! From named tensors to uploaded weights, with shape checks on the way.

use crate::ModelError;
use onebit_ops::{
    Backend, DenseTensor, Meta, OpError, UploadOptions, Vector, Weight, WeightInfo, WeightSource, WeightStore,
};
use onebit_quant::{Format, Matrix, ParamType};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// Wishes at loading.
#[derive(Clone, Copy, Default)]
pub struct LoadOptions<'a> {
    /// Keep offsets even where they can be derived.
    pub keep_biases: bool,
    /// Where weights are kept in the device's own layout between runs. What it holds must be of this checkpoint, this
    /// layout and these options.
    pub store: Option<&'a dyn WeightStore>,
}

/// How far loading is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the checkpoint uploaded so far.
    pub bytes: u64,
    /// Bytes in all.
    pub total: u64,
}

/// What a part of the model is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PartKind {
    /// Token embedding (and the head, when tied).
    Embedding,
    /// Full attention projections.
    Attention,
    /// Delta-rule projections.
    Delta,
    /// Feed-forward projections.
    Mlp,
    /// Output head of its own.
    Head,
    /// Attention and feed-forward projections in one matrix.
    Joint,
    /// What scales, shifts and gates the blocks of an image transformer.
    Modulation,
    /// Convolutions.
    Convolution,
}

impl std::fmt::Display for PartKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            PartKind::Embedding => "embedding",
            PartKind::Attention => "attention",
            PartKind::Delta => "delta rule",
            PartKind::Mlp => "feed-forward",
            PartKind::Head => "head",
            PartKind::Joint => "attention and feed-forward",
            PartKind::Modulation => "modulation",
            PartKind::Convolution => "convolution",
        })
    }
}

/// One matrix of the checkpoint as the model uses it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Name of the fused weight that it goes into.
    pub weight: String,
    /// Tensor name in the checkpoint, without `.weight`.
    pub tensor: String,
    /// Use.
    pub kind: PartKind,
    /// Stored format.
    pub format: Format,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Bytes in the file: codes, scales and offsets.
    pub bytes: u64,
}

/// Every matrix of a model, found without reading weights.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outline {
    /// In forward order.
    pub parts: Vec<Part>,
}

impl Outline {
    /// Bytes of all matrices.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|p| p.bytes).sum()
    }
}

/// Where the loader puts what it finds: on a device, or only into a list.
pub(crate) enum Target<'a> {
    Device {
        backend: &'a dyn Backend,
        options: LoadOptions<'a>,
        progress: &'a mut dyn FnMut(Progress),
        total: u64,
    },
    Outline,
    /// Handles without a device behind them: enough to record with.
    Sketch,
}

/// Resolves names, checks shapes, uploads.
pub(crate) struct Loader<'a> {
    pub(crate) source: &'a dyn WeightSource,
    target: Target<'a>,
    prefix: &'static str,
    head: &'static str,
    outline: Outline,
    bytes: u64,
    /// Modules and tensors that were asked for, so that what is left over shows.
    used: RefCell<BTreeSet<String>>,
}

/// A module's leaf name: in Hugging Face files and in GGUF.
pub(crate) type Leaf = (&'static str, &'static str);

/// Prefixes under which Hugging Face and MLX writers put the language model, with the head's name beside.
const PREFIXES: [(&str, &str); 3] =
    [("language_model.model.", "language_model.lm_head"), ("model.language_model.", "lm_head"), ("model.", "lm_head")];

impl<'a> Loader<'a> {
    pub(crate) fn new(source: &'a dyn WeightSource, target: Target<'a>) -> Result<Self, ModelError> {
        let (prefix, head) = if source.is_gguf() {
            ("", "output")
        } else {
            let names = source.tensors();
            let found = PREFIXES.into_iter().find(|(prefix, _)| {
                let table = format!("{prefix}embed_tokens.weight");
                names.iter().any(|(name, _)| *name == table)
            });
            found.ok_or_else(|| ModelError::MissingTensor("model.embed_tokens.weight".to_owned()))?
        };
        Ok(Loader { prefix, head, ..Self::bare(source, target) })
    }

    /// For checkpoints whose tensors have no common prefix.
    pub(crate) fn bare(source: &'a dyn WeightSource, target: Target<'a>) -> Self {
        let (outline, used) = (Outline::default(), RefCell::default());
        Loader { source, target, prefix: "", head: "", outline, bytes: 0, used }
    }

    /// What has been found so far.
    pub(crate) fn outline(&self) -> &Outline {
        &self.outline
    }

    pub(crate) fn into_outline(self) -> Outline {
        self.outline
    }

    /// Full name of a module outside the layers.
    pub(crate) fn global(&self, leaf: Leaf) -> String {
        if self.source.is_gguf() { leaf.1.to_owned() } else { format!("{}{}", self.prefix, leaf.0) }
    }

    /// Full name of a module of layer `i`.
    pub(crate) fn layer(&self, i: usize, leaf: Leaf) -> String {
        if self.source.is_gguf() {
            format!("blk.{i}.{}", leaf.1)
        } else {
            format!("{}layers.{i}.{}", self.prefix, leaf.0)
        }
    }

    /// Name of the output head's module.
    pub(crate) fn head_name(&self) -> String {
        self.head.to_owned()
    }

    /// The matrix of a module, which must be there.
    pub(crate) fn matrix(&self, name: &str) -> Result<Matrix<'a>, ModelError> {
        self.used.borrow_mut().insert(name.to_owned());
        self.source.matrix(name)?.ok_or_else(|| ModelError::MissingTensor(format!("{name}.weight")))
    }

    /// Uploads modules of equal width as one weight. `None` for an outline.
    pub(crate) fn weight(
        &mut self,
        kind: PartKind,
        weight: &str,
        members: &[(String, [usize; 2])],
    ) -> Result<Option<Weight>, ModelError> {
        let mut parts = Vec::with_capacity(members.len());
        for (name, shape) in members {
            parts.push(self.part(kind, weight, name, *shape)?);
        }
        let Target::Device { backend, options, progress, total } = &mut self.target else {
            return Ok(self.sketch(weight, &parts));
        };
        let uploaded = match options.store.and_then(|store| store.find(weight)) {
            Some(kept) => backend.restore(weight, &parts, kept)?,
            None => {
                members.iter().for_each(|(name, _)| self.source.fetch(name));
                let new = backend.upload(weight, &parts, UploadOptions { keep_biases: options.keep_biases })?;
                if let (Some(store), Some(resident)) = (options.store, backend.resident(&new)) {
                    store.keep(weight, resident);
                }
                new
            }
        };
        members.iter().for_each(|(name, _)| self.source.release(name));
        progress(Progress { bytes: self.bytes, total: *total });
        Ok(Some(uploaded))
    }

    /// Uploads some rows of one module as a weight each.
    pub(crate) fn cut(
        &mut self,
        kind: PartKind,
        (name, shape): (String, [usize; 2]),
        weights: &[(String, Range<usize>)],
    ) -> Result<Option<Vec<Weight>>, ModelError> {
        let matrix = self.part(kind, &name, &name, shape)?;
        let mut uploaded = Vec::with_capacity(weights.len());
        for (weight, rows) in weights {
            let part = matrix.slice_rows(rows.clone());
            uploaded.push(match &self.target {
                Target::Device { backend, options, .. } => {
                    Some(backend.upload(weight, &[part], UploadOptions { keep_biases: options.keep_biases })?)
                }
                _ => self.sketch(weight, &[part]),
            });
        }
        if let Target::Device { progress, total, .. } = &mut self.target {
            self.source.release(&name);
            progress(Progress { bytes: self.bytes, total: *total });
        }
        Ok(uploaded.into_iter().collect())
    }

    /// Uploads a convolution, `[out, in, kernel]` as stored `[out][in][kernel][kernel]`, with columns reordered to
    /// `[kernel][kernel][in]`. It keeps two bytes a value where that loses nothing.
    pub(crate) fn convolution(
        &mut self,
        name: &str,
        [rows, channels, kernel]: [usize; 3],
    ) -> Result<Option<Weight>, ModelError> {
        let taps = kernel * kernel;
        let (cols, tensor) = (channels * taps, format!("{name}.weight"));
        let values = match self.target {
            Target::Device { .. } => self.values(&tensor, rows * cols)?,
            // Headers say enough: the caller took these sizes from them.
            _ => Vec::new(),
        };
        let narrow = values.iter().all(|v| v.to_bits() & 0xffff == 0);
        let format = if narrow { Format::BF16 } else { Format::F32 };
        let bytes = format.matrix_bytes(rows, cols).unwrap_or(0) as u64;
        self.outline.parts.push(Part {
            weight: name.to_owned(),
            tensor: name.to_owned(),
            kind: PartKind::Convolution,
            format,
            rows,
            cols,
            bytes,
        });
        self.bytes += bytes;
        let (keep, kind) = (self.bytes, format.dense().unwrap_or(ParamType::F32));
        let Target::Device { backend, options, progress, total } = &mut self.target else {
            let matrix = Matrix { format, rows, cols, codes: &[], scales: &[], biases: &[] };
            return Ok(self.sketch(name, &[matrix]));
        };
        let mut codes = Vec::with_capacity(bytes as usize);
        for row in values.chunks_exact(cols.max(1)) {
            for tap in 0..taps {
                row.iter().skip(tap).step_by(taps).for_each(|v| kind.write(*v, &mut codes));
            }
        }
        let matrix = Matrix::new(format, rows, cols, &codes, &[], &[]).map_err(OpError::from)?;
        let weight = backend.upload(name, &[matrix], UploadOptions { keep_biases: options.keep_biases })?;
        self.source.release(name);
        progress(Progress { bytes: keep, total: *total });
        Ok(Some(weight))
    }

    /// A handle that says what a weight would be, where that is wanted.
    fn sketch(&self, name: &str, parts: &[Matrix<'_>]) -> Option<Weight> {
        if !matches!(self.target, Target::Sketch) {
            return None;
        }
        let (mut ranges, mut rows) = (Vec::new(), 0);
        for part in parts {
            ranges.push(rows..rows + part.rows);
            rows += part.rows;
        }
        // Offsets of one and two bits are derived when weights are uploaded.
        let bytes = |m: &Matrix<'_>| {
            let all = m.format.matrix_bytes(m.rows, m.cols).unwrap_or(0);
            match m.format {
                Format::Affine { bits: 1 | 2, group, bias, .. } => {
                    all - m.rows * m.cols / usize::from(group) * bias.bytes()
                }
                _ => all,
            }
        };
        let info = WeightInfo {
            name: name.to_owned(),
            rows,
            cols: parts.first().map_or(0, |p| p.cols),
            parts: ranges,
            kernel: "none".to_owned(),
            resident_bytes: parts.iter().map(|p| bytes(p) as u64).sum(),
            shed_bytes: 0,
        };
        Some(Weight::new(info, Box::new(())))
    }

    /// Uploads a module of which only rows are looked up. `None` for an outline.
    pub(crate) fn table(
        &mut self,
        kind: PartKind,
        weight: &str,
        (name, shape): (String, [usize; 2]),
    ) -> Result<Option<Weight>, ModelError> {
        let lent = match &self.target {
            Target::Device { .. } => self.source.table(&name)?,
            Target::Outline | Target::Sketch => None,
        };
        let Some(table) = lent else { return self.weight(kind, weight, &[(name, shape)]) };
        self.part(kind, weight, &name, shape)?;
        let Target::Device { backend, progress, total, .. } = &mut self.target else { return Ok(None) };
        let uploaded = backend.upload_table(weight, table)?;
        progress(Progress { bytes: self.bytes, total: *total });
        Ok(Some(uploaded))
    }

    /// One matrix of a weight, checked and noted.
    fn part(
        &mut self,
        kind: PartKind,
        weight: &str,
        name: &str,
        [rows, cols]: [usize; 2],
    ) -> Result<Matrix<'a>, ModelError> {
        let matrix = self.matrix(name)?;
        if (matrix.rows, matrix.cols) != (rows, cols) {
            return Err(ModelError::TensorShape {
                tensor: format!("{name}.weight"),
                wanted: format!("[{rows}, {cols}]"),
                got: format!("[{}, {}]", matrix.rows, matrix.cols),
            });
        }
        let (weight, tensor, bytes) = (weight.to_owned(), name.to_owned(), matrix.bytes() as u64);
        self.outline.parts.push(Part { weight, tensor, kind, format: matrix.format, rows, cols, bytes });
        self.bytes += bytes;
        Ok(matrix)
    }

    /// A float tensor of `len` values, widened to f32.
    pub(crate) fn values(&self, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        self.used.borrow_mut().insert(name.to_owned());
        let found = self.source.dense(name)?;
        let DenseTensor { shape, values } = found.ok_or_else(|| ModelError::MissingTensor(name.to_owned()))?;
        if values.len() != len {
            return Err(ModelError::TensorShape {
                tensor: name.to_owned(),
                wanted: format!("{len} values"),
                got: format!("{shape:?}"),
            });
        }
        if let Some(bad) = values.iter().find(|v| !v.is_finite()) {
            return Err(ModelError::UnsupportedValue {
                key: format!("tensor {name}"),
                found: bad.to_string(),
                wanted: "finite values; download the file again".to_owned(),
            });
        }
        Ok(values)
    }

    /// Refuses a checkpoint with language-model tensors that `layers` layers of this architecture do not use: it is
    /// another model, or its metadata lie. Vision towers, draft heads and a stored copy of a tied head may be there.
    pub(crate) fn refuse_leftovers(&self, layers: usize) -> Result<(), ModelError> {
        let used = self.used.borrow();
        let module = |name: &str| {
            let suffix = [".weight", ".scales", ".biases"].into_iter().find(|s| name.ends_with(s));
            suffix.map_or_else(String::new, |s| name[..name.len() - s.len()].to_owned())
        };
        let beside = |name: &str| {
            if self.source.is_gguf() {
                let block = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
                return name.contains(".nextn.") || block.is_some_and(|b| b >= layers && self.has_draft_head());
            }
            !name.starts_with(self.prefix) || name.ends_with(".rotary_emb.inv_freq")
        };
        let left: Vec<String> = self.source.tensors().into_iter().map(|(name, _)| name).collect();
        let mut left = left.into_iter().filter(|name| {
            let module = module(name);
            !used.contains(name) && !used.contains(&module) && module != self.head && !beside(name)
        });
        match left.next() {
            None => Ok(()),
            Some(tensor) => Err(ModelError::UnusedTensor { tensor, others: left.count(), layers }),
        }
    }

    fn has_draft_head(&self) -> bool {
        let architecture = self.source.meta("general.architecture");
        let architecture = architecture.as_ref().and_then(Meta::as_str).unwrap_or_default();
        let key = format!("{architecture}.nextn_predict_layers");
        self.source.meta(&key).and_then(|m| m.as_usize()).is_some_and(|n| n > 0)
    }

    /// Puts values on the device. `None` for an outline.
    pub(crate) fn vector(&self, values: &[f32]) -> Result<Option<Vector>, ModelError> {
        match &self.target {
            Target::Device { backend, .. } => Ok(Some(backend.upload_vector(values)?)),
            Target::Sketch => Ok(Some(Vector::new(values.len(), Arc::new(())))),
            Target::Outline => Ok(None),
        }
    }

    /// The RMS norm gain of a module, plus `offset` where the file stores it zero-centred.
    pub(crate) fn gain(&self, module: &str, len: usize, offset: f32) -> Result<Option<Vector>, ModelError> {
        let mut values = self.values(&format!("{module}.weight"), len)?;
        values.iter_mut().for_each(|v| *v += offset);
        self.vector(&values)
    }
}

//! The tensors and metadata of a whole model, without its bytes: what can be known from headers alone.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use onebit_quant::{Format, ParamType};
use serde_json::Value as Json;

use crate::error::{Error, Problem, clip};
use crate::gguf::{self, Value, check_splits, resolve_q2_0};
use crate::kind::Kind;
use crate::meta::Meta;
use crate::mlx::{Quantization, infer};
use crate::safetensors;
use crate::tensor::{StoredType, TensorInfo};

/// Which container a model comes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Container {
    /// Safetensors files, MLX or HF layout.
    Safetensors,
    /// GGUF files.
    Gguf,
}

/// A weight matrix by its header entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatrixInfo<'a> {
    /// How it is stored.
    pub format: Format,
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
    /// Codes, blocks or dense values.
    pub weight: &'a TensorInfo,
    /// MLX scales and biases.
    pub params: Option<(&'a TensorInfo, &'a TensorInfo)>,
}

impl MatrixInfo<'_> {
    /// Stored bytes, all parts together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.weight.bytes + self.params.map_or(0, |(scales, biases)| scales.bytes + biases.bytes)
    }
}

/// Everything that the headers and side files of a model say.
#[derive(Debug)]
pub struct Inventory {
    path: PathBuf,
    container: Container,
    files: Vec<String>,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
    config: Json,
    quantization: Quantization,
    gguf: Option<BTreeMap<String, Value>>,
    kind: Kind,
}

impl Inventory {
    /// A safetensors model from `config.json` ([`Json::Null`] without one) and the headers of its shards, each with
    /// its file name. `path` (or a repository name) is used in messages.
    ///
    /// # Errors
    /// Duplicate tensors across shards, an invalid `quantization` section, or, in a text model, a triplet whose bits,
    /// group or mode cannot be read. Vision towers are not judged here: a text model never fails for its tower.
    pub fn from_safetensors(
        path: &Path,
        config: Json,
        shards: &[(String, safetensors::Header)],
    ) -> Result<Self, Error> {
        let tensors = shards.iter().enumerate().flat_map(|(i, (_, header))| header.place(i)).collect();
        let files = shards.iter().map(|(name, _)| name.clone()).collect();
        let inventory = Self::build(path, Container::Safetensors, files, tensors, config, None)?;
        // Other kinds are refused by their name, which says more than the layer that would fail first.
        for base in inventory.triplets().filter(|_| inventory.kind == Kind::Text) {
            if !base.contains("vision") && !base.contains("visual") {
                inventory.matrix_info(base)?;
            }
        }
        Ok(inventory)
    }

    /// A GGUF model from the headers of all its splits, in order, each with its file name. Metadata is that of the
    /// first; `path` is that of any of the files. `q2_0_group` settles type id 42 where the files do not.
    ///
    /// # Errors
    /// Those of [`resolve_q2_0`], [`check_splits`] and [`gguf::Header::place`].
    pub fn from_gguf(path: &Path, splits: Vec<(String, gguf::Header)>, q2_0_group: Option<u16>) -> Result<Self, Error> {
        let fail = |problem| Error::new(path, problem);
        let headers: Vec<&gguf::Header> = splits.iter().map(|(_, header)| header).collect();
        check_splits(&headers).map_err(fail)?;
        let first_name = splits.first().map_or("", |(name, _)| name);
        let q2_0 = resolve_q2_0(&headers, q2_0_group, first_name).map_err(fail)?;
        let mut tensors = Vec::new();
        for (i, (name, header)) in splits.iter().enumerate() {
            // With several files the message must name the one at fault.
            let file = if splits.len() > 1 { path.with_file_name(name) } else { path.to_owned() };
            tensors.extend(header.place(q2_0, i).map_err(|problem| Error::new(&file, problem))?);
        }
        let files = splits.iter().map(|(name, _)| name.clone()).collect();
        let metadata = splits.into_iter().next().map(|(_, header)| header.metadata);
        Self::build(path, Container::Gguf, files, tensors, Json::Null, metadata)
    }

    fn build(
        path: &Path,
        container: Container,
        files: Vec<String>,
        tensors: Vec<TensorInfo>,
        config: Json,
        gguf: Option<BTreeMap<String, Value>>,
    ) -> Result<Self, Error> {
        let mut by_name = HashMap::with_capacity(tensors.len());
        for (i, tensor) in tensors.iter().enumerate() {
            if by_name.insert(tensor.name.clone(), i).is_some() {
                return Err(Error::new(path, Problem::DuplicateTensor(clip(&tensor.name))));
            }
        }
        let quantization = Quantization::parse(&config).map_err(|problem| Error::new(path, problem))?;
        let kind = Kind::Unknown(String::new());
        let mut inventory =
            Self { path: path.to_owned(), container, files, tensors, by_name, config, quantization, gguf, kind };
        inventory.kind = Kind::recognise(&inventory);
        Ok(inventory)
    }

    /// Container of the weights.
    #[must_use]
    pub fn container(&self) -> Container {
        self.container
    }

    /// Folder, file or repository that this describes.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Names of the weight files; [`TensorInfo::file`] counts in this list.
    #[must_use]
    pub fn files(&self) -> &[String] {
        &self.files
    }

    /// `config.json`, or null for GGUF and for folders without one.
    #[must_use]
    pub fn config(&self) -> &Json {
        &self.config
    }

    /// The `quantization` section of `config.json`.
    #[must_use]
    pub fn quantization(&self) -> &Quantization {
        &self.quantization
    }

    /// All key-values of a GGUF model.
    #[must_use]
    pub fn gguf(&self) -> Option<&BTreeMap<String, Value>> {
        self.gguf.as_ref()
    }

    /// What this model is.
    #[must_use]
    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    pub(crate) fn set_kind(&mut self, kind: Kind) {
        self.kind = kind;
    }

    /// A metadata value: a GGUF key, or a dotted path into `config.json` such as `text_config.hidden_size`.
    #[must_use]
    pub fn meta(&self, key: &str) -> Option<Meta<'_>> {
        match &self.gguf {
            Some(map) => map.get(key).map(Meta::from),
            None => Meta::from(&self.config).get(key),
        }
    }

    /// All tensors, in file order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &TensorInfo> {
        self.tensors.iter()
    }

    /// One tensor by its exact name.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&i| &self.tensors[i])
    }

    /// Module paths that have an MLX triplet (those with `.scales`), in file order.
    pub fn triplets(&self) -> impl Iterator<Item = &str> {
        self.tensors.iter().filter_map(|t| t.name.strip_suffix(".scales"))
    }

    /// All packed matrices by module path: MLX triplets and GGUF blocks of two dimensions. Those that cannot be read
    /// (say, a vision tower in another width) are left out.
    pub fn packed(&self) -> impl Iterator<Item = (&str, MatrixInfo<'_>)> {
        self.tensors.iter().filter_map(|t| {
            let base = match t.stored {
                StoredType::Block(_) => t.name.strip_suffix(".weight").unwrap_or(&t.name),
                _ => t.name.strip_suffix(".scales")?,
            };
            let info = self.matrix_info(base).ok().flatten()?;
            info.format.is_packed().then_some((base, info))
        })
    }

    /// The matrix at a module path (a tensor name without `.weight`; the few GGUF tensors without that suffix go by
    /// their own name). `None` when there is no such tensor.
    ///
    /// Bits and group of an MLX triplet come from the configuration and are checked against the shapes.
    ///
    /// # Errors
    /// A triplet that is incomplete, disagrees with the configuration or has another mode than affine; a tensor that
    /// is no matrix of numbers.
    pub fn matrix_info(&self, base: &str) -> Result<Option<MatrixInfo<'_>>, Error> {
        self.matrix_info_at(base, None)
    }

    /// As [`Inventory::matrix_info`], for a caller that knows the number of columns: then a triplet needs no
    /// configuration, and any other width is an error that names the layer.
    ///
    /// # Errors
    /// As [`Inventory::matrix_info`].
    pub fn matrix_info_at(&self, base: &str, cols: Option<usize>) -> Result<Option<MatrixInfo<'_>>, Error> {
        let info = self.find_matrix(base, cols).map_err(|problem| Error::new(&self.path, problem))?;
        if let (Some(info), Some(cols)) = (&info, cols)
            && info.cols != cols
        {
            let why = format!("has {} columns, wanted {cols}", info.cols);
            return Err(Error::new(&self.path, Problem::tensor(&info.weight.name, why)));
        }
        Ok(info)
    }

    fn find_matrix(&self, base: &str, cols: Option<usize>) -> Result<Option<MatrixInfo<'_>>, Problem> {
        let part = |suffix: &str| self.tensor(&format!("{base}.{suffix}"));
        let setting = self.quantization.lookup(base);
        let Some(weight) = part("weight").or_else(|| self.tensor(base)) else {
            // AWQ and GPTQ spell their codes this way.
            if part("qweight").is_some() {
                let mode = setting.flatten().map_or_else(|| "qweight".to_owned(), |s| s.mode.clone());
                return Err(Problem::Mode { layer: clip(base), mode: clip(&mode) });
            }
            return Ok(None);
        };
        let Some(scales) = part("scales") else {
            if self.quantization.own(base).is_some_and(|own| own.is_some()) {
                return Err(Problem::Disagreement {
                    layer: clip(base),
                    config: "it is quantized".into(),
                    shapes: format!("it is {} without scales", weight.describe()),
                });
            }
            return plain_matrix(weight).map(Some);
        };
        if let Some(Some(setting)) = setting
            && setting.mode != "affine"
        {
            return Err(Problem::Mode { layer: clip(base), mode: clip(&setting.mode) });
        }
        if setting == Some(None) {
            return Err(Problem::Disagreement {
                layer: clip(base),
                config: "it is not quantized".into(),
                shapes: format!("it is {} with scales {:?}", weight.describe(), scales.shape),
            });
        }
        let missing = |name: &str| Problem::tensor(&format!("{base}.{name}"), "is missing beside its `.scales`");
        let biases = part("biases").ok_or_else(|| missing("biases"))?;
        let (scale, bias) = (param_type(scales)?, param_type(biases)?);
        let (StoredType::U32, &[rows, words]) = (weight.stored, weight.shape.as_slice()) else {
            return Err(wrong_kind(weight, "packed U32 codes of two dimensions"));
        };
        if scales.shape != biases.shape || scales.shape.len() != 2 || scales.shape[0] != rows {
            let why = format!(
                "has scales {:?} and biases {:?} for codes {:?}; all need the same rows",
                scales.shape, biases.shape, weight.shape
            );
            return Err(Problem::tensor(&weight.name, why));
        }
        let groups = scales.shape[1];
        let (bits, group) = infer(base, words, groups, setting.flatten(), cols)?;
        let format =
            Format::affine(bits, group, scale, bias).map_err(|source| Problem::Quant { tensor: clip(base), source })?;
        // `infer` found groups * group columns that match the words, so this does not overflow.
        let cols = groups * group as usize;
        Ok(Some(MatrixInfo { format, rows, cols, weight, params: Some((scales, biases)) }))
    }
}

fn param_type(tensor: &TensorInfo) -> Result<ParamType, Problem> {
    match tensor.stored {
        StoredType::Float(param) => Ok(param),
        _ => Err(wrong_kind(tensor, "F16, BF16 or F32")),
    }
}

fn plain_matrix(weight: &TensorInfo) -> Result<MatrixInfo<'_>, Problem> {
    let format = match weight.stored {
        StoredType::Block(format) => format,
        StoredType::Float(ParamType::F32) => Format::F32,
        StoredType::Float(ParamType::F16) => Format::F16,
        StoredType::Float(ParamType::BF16) => Format::BF16,
        StoredType::F64 | StoredType::U32 | StoredType::Other(..) => {
            return Err(wrong_kind(weight, "a matrix of packed blocks, F16, BF16 or F32"));
        }
    };
    let &[rows, cols] = weight.shape.as_slice() else { return Err(wrong_kind(weight, "a matrix of two dimensions")) };
    Ok(MatrixInfo { format, rows, cols, weight, params: None })
}

pub(crate) fn wrong_kind(tensor: &TensorInfo, wanted: &'static str) -> Problem {
    Problem::WrongKind { tensor: clip(&tensor.name), got: tensor.describe(), wanted }
}

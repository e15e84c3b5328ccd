//! Opening a model and reading its tensors.

use std::fs;
use std::ops::{Deref, Range};
use std::path::Path;
use std::time::SystemTime;

use onebit_quant::Matrix;
use serde_json::Value as Json;

use crate::discover::{self, Files};
use crate::error::{Error, Problem, clip};
use crate::inventory::{Inventory, MatrixInfo, wrong_kind};
use crate::json::read_config;
use crate::kind::Kind;
use crate::storage::{FileBytes, Storage};
use crate::tensor::{StoredType, TensorInfo};
use crate::{gguf, safetensors};

/// Folder of the packed transformer in an image pack for MLX.
const IMAGE_TRANSFORMER: &str = "transformer-packed-mflux";

/// Row-major shape and values of a tensor widened to f32.
pub type DenseTensor = (Vec<usize>, Vec<f32>);

/// How to open a model.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// Map the files (default) instead of reading them into memory. A mapped file that another program shortens
    /// while a tensor is read ends this process with SIGBUS; in memory nothing can happen to it.
    pub mmap: bool,
    /// Block size, 64 or 128, of GGUF type id 42 where the file itself does not tell.
    pub q2_0_group: Option<u16>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self { mmap: true, q2_0_group: None }
    }
}

/// What tells a version of a weight file from any other, wherever it lies.
#[derive(Debug, Clone, Copy)]
pub struct Fingerprint<'a> {
    /// Bytes of the file.
    pub len: u64,
    /// Time of its last change.
    pub modified: SystemTime,
    /// Everything before its first tensor.
    pub header: &'a [u8],
}

/// An open model: an [`Inventory`] whose bytes are at hand.
#[derive(Debug)]
pub struct Checkpoint {
    inventory: Inventory,
    storages: Vec<Storage>,
}

/// Opens a folder, a `.safetensors` or `.gguf` file, or an index. Reads headers and side files, no weights (unless
/// `mmap` is off).
///
/// Kinds that cannot run (see [`Kind`]) open all the same; refusing them is the caller's sentence.
///
/// # Errors
/// Any [`Problem`], with the path of the file that has it.
pub fn open(path: &Path, options: &OpenOptions) -> Result<Checkpoint, Error> {
    let meta = fs::metadata(path).map_err(|e| {
        let missing = e.kind() == std::io::ErrorKind::NotFound;
        Error::new(path, if missing { Problem::NotFound } else { Problem::Io(e) })
    })?;
    if meta.is_dir() {
        return open_folder(path, options);
    }
    // Before it is opened: opening a pipe waits for a writer.
    if !meta.is_file() {
        return Err(Error::new(path, Problem::NotAFile));
    }
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    if name.ends_with(".index.json") {
        return open_files(path, folder, discover::sharded(folder, path)?, options);
    }
    let files = if is_gguf(path, &name)? {
        discover::splits(path)?
    } else {
        Files::Safetensors { shards: vec![(name, path.to_owned())], index: None }
    };
    open_files(path, folder, files, options)
}

/// Opens a safetensors model that is part of the program: the bytes of its `config.json`, of its `quantization_config.json`
/// where it has one, and of its one weight file. `name` stands where others have a path.
///
/// # Errors
/// Any [`Problem`] of the bytes.
pub fn open_embedded(
    name: &Path,
    config: &[u8],
    quantization: Option<&[u8]>,
    weights: &'static [u8],
) -> Result<Checkpoint, Error> {
    let json = |bytes: &[u8]| {
        serde_json::from_slice::<Json>(bytes)
            .map_err(|e| Error::new(name, Problem::Json { part: "configuration", why: e.to_string() }))
    };
    let mut config = json(config)?;
    if let Some(side) = quantization {
        config["quantization"] = json(side)?;
    }
    let (storage, header) = Storage::embedded(name, weights, safetensors::Header::parse)?;
    let inventory = Inventory::from_safetensors(name, config, &[("model.safetensors".to_owned(), header)])?;
    Ok(Checkpoint { inventory, storages: vec![storage] })
}

/// Decides by the magic; a file too short for one goes by its name, so that its error is that of its container.
fn is_gguf(path: &Path, name: &str) -> Result<bool, Error> {
    use std::io::Read;
    let mut magic = [0; 4];
    let mut file = fs::File::open(path).map_err(|e| Error::new(path, e.into()))?;
    Ok(match file.read(&mut magic) {
        Ok(4) => &magic == b"GGUF" || name.ends_with(".gguf"),
        _ => name.ends_with(".gguf"),
    })
}

fn open_folder(path: &Path, options: &OpenOptions) -> Result<Checkpoint, Error> {
    let transformer = path.join(IMAGE_TRANSFORMER);
    if transformer.is_dir() {
        let mut checkpoint = open_files(path, &transformer, discover::in_folder(&transformer)?, options)?;
        if let Kind::Unknown(_) = checkpoint.kind() {
            let (bits, group) = packing(checkpoint.config().get("quantization"));
            checkpoint.inventory.set_kind(Kind::Image { bits, group });
        }
        return Ok(checkpoint);
    }
    // Packs for other runtimes and unpacked trees: recognised by their folders, without reading a weight.
    for name in ["transformer-gemlite-int1", "transformer-gemlite-int2", "transformer"] {
        let component = path.join(name);
        if component.is_dir() {
            let side = read_config(&component.join("quantization_config.json"))?;
            let (mut bits, group) = packing(side.as_ref());
            if bits == 0 {
                bits = match name.strip_prefix("transformer-gemlite-int") {
                    Some(digits) => digits.parse().unwrap_or(0),
                    None => 16,
                };
            }
            let mut inventory = Inventory::from_safetensors(path, Json::Null, &[])?;
            inventory.set_kind(Kind::Image { bits, group });
            return Ok(Checkpoint { inventory, storages: Vec::new() });
        }
    }
    open_files(path, path, discover::in_folder(path)?, options)
}

/// Bits and group of a quantization object; zeros where it does not say.
fn packing(section: Option<&Json>) -> (u32, u32) {
    let field =
        |name: &str| section.and_then(|s| s.get(name)).and_then(Json::as_u64).and_then(|v| u32::try_from(v).ok());
    (field("bits").unwrap_or(0), field("group_size").unwrap_or(0))
}

fn open_files(path: &Path, folder: &Path, files: Files, options: &OpenOptions) -> Result<Checkpoint, Error> {
    match files {
        Files::Gguf(files) => {
            let mut storages = Vec::new();
            let mut headers = Vec::new();
            for (name, file) in files {
                let (storage, header) = Storage::open(&file, options.mmap, gguf::Header::parse)?;
                storages.push(storage);
                headers.push((name, header));
            }
            // Messages name a file even when its folder was given.
            let label = match headers.first() {
                Some((name, _)) if path.is_dir() => path.join(name),
                _ => path.to_owned(),
            };
            let inventory = Inventory::from_gguf(&label, headers, options.q2_0_group)?;
            Ok(Checkpoint { inventory, storages })
        }
        Files::Safetensors { shards, index } => {
            let config = safetensors_config(folder)?;
            let mut storages = Vec::new();
            let mut headers = Vec::new();
            for (name, file) in shards {
                let (storage, header) = Storage::open(&file, options.mmap, safetensors::Header::parse)?;
                storages.push(storage);
                headers.push((name, header));
            }
            let mut inventory = Inventory::from_safetensors(path, config, &headers)?;
            if let Some((index_path, index)) = index {
                check_index(&index_path, &index, &inventory)?;
            }
            // The side file is the fork's description of the rotation; its presence alone is the sign.
            if folder.join("hadamard.json").exists() {
                let (bits, group) = match inventory.kind() {
                    Kind::Rotated { bits, group, .. } => (*bits, *group),
                    _ => packing(inventory.config().get("quantization")),
                };
                inventory.set_kind(Kind::Rotated { bits, group, how: "the side file `hadamard.json`".into() });
            }
            Ok(Checkpoint { inventory, storages })
        }
    }
}

/// `config.json`, with `quantization_config.json` as its `quantization` section where it has none (image packs).
fn safetensors_config(folder: &Path) -> Result<Json, Error> {
    let path = folder.join("config.json");
    let mut config = read_config(&path)?.unwrap_or(Json::Null);
    if !config.is_null() && !config.is_object() {
        let why = "is not an object".into();
        return Err(Error::new(&path, Problem::Config { key: "config.json".into(), why }));
    }
    if config.get("quantization").is_none()
        && config.get("quantization_config").is_none()
        && let Some(side) = read_config(&folder.join("quantization_config.json"))?
    {
        if config.is_null() {
            config = Json::Object(serde_json::Map::new());
        }
        config["quantization"] = side;
    }
    Ok(config)
}

fn check_index(path: &Path, index: &safetensors::Index, inventory: &Inventory) -> Result<(), Error> {
    for (tensor, shard) in &index.weight_map {
        let holds = |t: &TensorInfo| inventory.files().get(t.file).is_some_and(|name| name == shard);
        if !inventory.tensor(tensor).is_some_and(holds) {
            return Err(Error::new(path, Problem::NotInShard { tensor: clip(tensor), shard: clip(shard) }));
        }
    }
    Ok(())
}

impl Deref for Checkpoint {
    type Target = Inventory;

    fn deref(&self) -> &Inventory {
        &self.inventory
    }
}

impl Checkpoint {
    /// What the headers and side files say.
    #[must_use]
    pub fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    /// The stored bytes of a tensor, at any alignment; `None` when there is no such tensor.
    ///
    /// # Errors
    /// [`Problem::Changed`] when the file has another length than when it was opened.
    pub fn bytes(&self, name: &str) -> Result<Option<&[u8]>, Error> {
        self.inventory.tensor(name).map(|tensor| self.data(tensor)).transpose()
    }

    fn data(&self, tensor: &TensorInfo) -> Result<&[u8], Error> {
        self.storages[tensor.file].slice(tensor.offset, tensor.bytes)
    }

    /// The fingerprints of the weight files, in order; `None` where there are no files or the system does not tell.
    #[must_use]
    pub fn fingerprints(&self) -> Option<Vec<Fingerprint<'_>>> {
        let mut fingerprints = Vec::with_capacity(self.storages.len());
        for (file, storage) in self.storages.iter().enumerate() {
            let first = self.inventory.tensors().filter(|t| t.file == file).map(|t| t.offset).min();
            let header = storage.slice(0, first.unwrap_or(storage.len())).ok()?;
            fingerprints.push(Fingerprint { len: storage.len(), modified: storage.modified()?, header });
        }
        Some(fingerprints)
    }

    /// The file of a tensor as bytes that outlive this checkpoint, and the tensor's range in them; `None` unless the file
    /// is mapped. The hazard of mapping, see [`OpenOptions::mmap`], lasts as long as they are used.
    #[must_use]
    pub fn lend(&self, tensor: &TensorInfo) -> Option<(FileBytes, Range<usize>)> {
        let map = self.storages[tensor.file].mapped()?;
        let start = usize::try_from(tensor.offset).ok()?;
        let end = start.checked_add(usize::try_from(tensor.bytes).ok()?).filter(|end| *end <= map.len())?;
        Some((map, start..end))
    }

    /// The weight matrix at a module path (without `.weight`): an MLX triplet, a GGUF block tensor or a dense tensor
    /// of two dimensions, `[rows, cols]` with rows = outputs. `None` when there is no such tensor.
    ///
    /// # Errors
    /// As [`Inventory::matrix_info`], and [`Problem::Changed`].
    pub fn matrix(&self, base: &str) -> Result<Option<Matrix<'_>>, Error> {
        let Some(info) = self.inventory.matrix_info(base)? else { return Ok(None) };
        self.view(&info).map(Some)
    }

    /// As [`Checkpoint::matrix`], for a caller that knows the number of columns: any other is an error.
    ///
    /// # Errors
    /// As [`Inventory::matrix_info_at`], and [`Problem::Changed`].
    pub fn matrix_at(&self, base: &str, cols: usize) -> Result<Option<Matrix<'_>>, Error> {
        let Some(info) = self.inventory.matrix_info_at(base, Some(cols))? else { return Ok(None) };
        self.view(&info).map(Some)
    }

    fn view(&self, info: &MatrixInfo<'_>) -> Result<Matrix<'_>, Error> {
        let (scales, biases) = match info.params {
            Some((scales, biases)) => (self.data(scales)?, self.data(biases)?),
            None => (&[][..], &[][..]),
        };
        Matrix::new(info.format, info.rows, info.cols, self.data(info.weight)?, scales, biases)
            .map_err(|source| Error::new(self.path(), Problem::Quant { tensor: clip(&info.weight.name), source }))
    }

    /// Any float tensor, widened to f32, with its row-major shape; `None` when there is no such tensor. Meant for
    /// norms, biases and convolutions: weight matrices stay packed.
    ///
    /// # Errors
    /// [`Problem::WrongKind`] for packed and integer tensors, [`Problem::Changed`].
    pub fn dense(&self, name: &str) -> Result<Option<DenseTensor>, Error> {
        let Some(tensor) = self.inventory.tensor(name) else { return Ok(None) };
        let data = self.data(tensor)?;
        let values = match tensor.stored {
            StoredType::Float(param) => {
                let mut values = vec![0.0; data.len() / param.bytes()];
                param.read_all(data, &mut values);
                values
            }
            StoredType::F64 => data
                .chunks_exact(8)
                .map(|b| f64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]) as f32)
                .collect(),
            _ => return Err(Error::new(self.path(), wrong_kind(tensor, "F16, BF16, F32 or F64"))),
        };
        Ok(Some((tensor.shape.clone(), values)))
    }

    /// Asks the operating system to read a tensor from the file, and some of what lies behind it, while other work is
    /// done. Does nothing for unknown names and in memory mode.
    pub fn fetch(&self, name: &str) {
        if let Some(tensor) = self.inventory.tensor(name) {
            self.storages[tensor.file].fetch(tensor.offset, tensor.bytes);
        }
    }

    /// Gives the memory behind a tensor back to the operating system, as after its content was copied or found
    /// derivable. It is read from the file again if it is touched. Does nothing for unknown names and in memory mode.
    pub fn release(&self, name: &str) {
        if let Some(tensor) = self.inventory.tensor(name) {
            self.storages[tensor.file].release(tensor.offset, tensor.bytes);
        }
    }
}

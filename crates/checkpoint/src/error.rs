//! What can be wrong with a checkpoint. Each problem is one sentence: what, where, wanted, got, what to do.

use std::io;
use std::path::{Path, PathBuf};

use onebit_quant::QuantError;

/// A [`Problem`] and the file or folder that has it.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct Error {
    /// File or folder.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: Box<Problem>,
}

impl Error {
    pub(crate) fn new(path: &Path, problem: Problem) -> Self {
        Self { path: path.to_owned(), problem: Box::new(problem) }
    }
}

/// What is wrong, without the path; the parsers over bytes return it bare.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The operating system refused.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// No such file or folder.
    #[error("does not exist")]
    NotFound,
    /// A pipe, a device, a socket.
    #[error("is neither a file nor a folder; name the weight file or its folder")]
    NotAFile,
    /// Zero bytes.
    #[error("is empty (0 bytes); download it again")]
    Empty,
    /// An error page saved under the name of a weight file.
    #[error("is a web page, not a weight file: the download was answered with an error page; download it again")]
    WebPage,
    /// A Git-LFS pointer instead of the content.
    #[error("is a Git LFS pointer of {0} bytes, not the weights; run `git lfs pull` there or download the file itself")]
    LfsPointer(u64),
    /// Neither safetensors nor GGUF.
    #[error("is neither a safetensors nor a GGUF file (it starts with {0})")]
    UnknownContainer(String),
    /// A folder without weights.
    #[error("holds no model.safetensors, no model.safetensors.index.json and no single .gguf file{0}")]
    NoWeights(String),
    /// An image model without one of its parts.
    #[error(
        "has no {part}: wanted `{wanted}` in it; download the whole image pack, for example with \
             `onebit pull prism-ml/bonsai-image-ternary-4B-mlx-2bit`"
    )]
    ImagePart {
        /// In words.
        part: &'static str,
        /// Folder or file.
        wanted: String,
    },
    /// An image model whose transformer is packed for another runtime.
    #[error(
        "holds `{0}`, which is packed for GemLite on CUDA and cannot be read; onebit reads the packs whose names end \
             in mlx-1bit or mlx-2bit, and unpacked ones"
    )]
    ForeignPack(String),
    /// A folder with several GGUF files.
    #[error("holds {} GGUF models; name the file to open: {}", .0.len(), .0.join(", "))]
    SeveralModels(Vec<String>),
    /// Shorter than its header says.
    #[error("is cut off: the header describes {wanted} bytes, the file has {got}, {} are missing; download it again", wanted - got)]
    Truncated {
        /// Bytes that the header describes.
        wanted: u64,
        /// Length of the file.
        got: u64,
    },
    /// Longer than its header says.
    #[error("has {} bytes after its last tensor: the header describes {wanted} bytes, the file has {got}; download it again", got - wanted)]
    TrailingBytes {
        /// Bytes that the header describes.
        wanted: u64,
        /// Length of the file.
        got: u64,
    },
    /// The length field of a safetensors file is impossible.
    #[error(
        "claims a header of {says} bytes, but at most {limit} fit in this file; it is damaged or no safetensors file"
    )]
    HeaderLength {
        /// The stored length.
        says: u64,
        /// File length less the length field.
        limit: u64,
    },
    /// Header or side file that is not the JSON that it should be.
    #[error("has invalid JSON in its {part}: {why}")]
    Json {
        /// `header`, `index` or `configuration`.
        part: &'static str,
        /// The parser's words.
        why: String,
    },
    /// A side file larger than any real one.
    #[error("is {got} bytes long; a file of this kind has at most {limit}")]
    TooLarge {
        /// Length of the file.
        got: u64,
        /// Limit in bytes.
        limit: u64,
    },
    /// A GGUF header that breaks the format.
    #[error("is not a valid GGUF file: {0}")]
    Gguf(String),
    /// A tensor entry that breaks the format.
    #[error("tensor `{tensor}`: {why}")]
    Tensor {
        /// Name of the tensor.
        tensor: String,
        /// What is wrong with it.
        why: String,
    },
    /// Two tensors of one name.
    #[error("tensor `{0}` appears twice")]
    DuplicateTensor(String),
    /// A tensor type without a row in the format table.
    #[error("tensor `{tensor}` has GGUF type id {id}, which this program does not read; supported ids are {supported}")]
    UnknownType {
        /// The stored id.
        id: u32,
        /// Name of the tensor.
        tensor: String,
        /// The ids that are read, with names.
        supported: String,
    },
    /// Type id 42 whose block size nothing in the file decides.
    #[error(
        "tensor `{tensor}` has GGUF type id 42 (Q2_0), which means blocks of 64 or of 128, and nothing in this file tells which{hint}; say which with --q2-0-group 64 or --q2-0-group 128"
    )]
    AmbiguousQ2_0 {
        /// One such tensor.
        tensor: String,
        /// What the file name suggests, as a clause, or nothing.
        hint: String,
    },
    /// Type id 42 whose size fits neither meaning, or both meanings in one file.
    #[error(
        "tensor `{tensor}` has GGUF type id 42 (Q2_0) and spans {got} bytes, but blocks of 64 need {g64} and blocks of 128 need {g128}; the file is damaged or of an unknown kind"
    )]
    Q2_0Size {
        /// The tensor.
        tensor: String,
        /// Bytes up to the next tensor.
        got: u64,
        /// Bytes with blocks of 64.
        g64: u64,
        /// Bytes with blocks of 128.
        g128: u64,
    },
    /// A shard that the index or the split count names is not there.
    #[error("shard `{0}` is missing; finish the download")]
    MissingShard(String),
    /// A shard name that leads out of the folder.
    #[error("the index names the shard `{0}`, which is not a plain file inside the folder; refused")]
    UnsafeShard(String),
    /// The index promises a tensor that its shard lacks.
    #[error("the index places tensor `{tensor}` in shard `{shard}`, which does not hold it")]
    NotInShard {
        /// The tensor.
        tensor: String,
        /// The shard.
        shard: String,
    },
    /// Splits of one GGUF model that do not belong together.
    #[error("split {0}")]
    Split(String),
    /// `config.json` and the shapes of a layer say different things.
    #[error("layer `{layer}`: config.json says {config}, but the tensor shapes say {shapes}")]
    Disagreement {
        /// Module path, without `.weight`.
        layer: String,
        /// From the configuration.
        config: String,
        /// From the shapes.
        shapes: String,
    },
    /// Bits and group of a layer cannot be told.
    #[error(
        "layer `{layer}`: the shapes allow {candidates}, and config.json has no `quantization` section that decides"
    )]
    UnknownBits {
        /// Module path, without `.weight`.
        layer: String,
        /// The possible readings.
        candidates: String,
    },
    /// A quantization mode other than affine.
    #[error("layer `{layer}` is stored in quantization mode `{mode}`; only `affine` is supported")]
    Mode {
        /// Module path, without `.weight`.
        layer: String,
        /// The mode as written.
        mode: String,
    },
    /// A value of `config.json` that has the wrong type or contradicts another.
    #[error("`{key}` {why}")]
    Config {
        /// Dotted path of the key.
        key: String,
        /// What is wrong with it.
        why: String,
    },
    /// A tensor of the wrong kind for the question.
    #[error("tensor `{tensor}` is {got}, wanted {wanted}")]
    WrongKind {
        /// The tensor.
        tensor: String,
        /// What it is.
        got: String,
        /// What was asked for.
        wanted: &'static str,
    },
    /// Shape, format and bytes do not belong together.
    #[error("tensor `{tensor}`: {source}")]
    Quant {
        /// The tensor or layer.
        tensor: String,
        /// The oracle's verdict.
        source: QuantError,
    },
    /// The file is no longer what it was when it was opened.
    #[error(
        "changed while it was in use: it had {wanted} bytes, now it has {got}; do not write to a model that runs, or use --no-mmap"
    )]
    Changed {
        /// Length at open.
        wanted: u64,
        /// Length now.
        got: u64,
    },
}

impl Problem {
    pub(crate) fn tensor(name: &str, why: impl Into<String>) -> Self {
        Self::Tensor { tensor: clip(name), why: why.into() }
    }
}

/// A name from an untrusted file, shortened and without control characters, for a message.
pub(crate) fn clip(name: &str) -> String {
    let mut out: String = name.chars().take(120).map(|c| if c.is_control() { '?' } else { c }).collect();
    if name.chars().nth(120).is_some() {
        out.push_str("...");
    }
    out
}

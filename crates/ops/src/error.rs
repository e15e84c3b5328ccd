//! What can go wrong between a model and a device.

/// An operation or a device failed. Every variant is one sentence: what, where, wanted, got, what to do.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum OpError {
    /// The backend has no kernel for a stored format.
    #[error("tensor `{tensor}`: the {backend} backend has no kernel for {format}; {advice}")]
    UnsupportedFormat {
        /// Tensor name.
        tensor: String,
        /// Format as printed by `onebit_quant::Format`.
        format: String,
        /// Backend name.
        backend: String,
        /// What the user can do.
        advice: String,
    },
    /// A backend does not run this kind of activations.
    #[error("the {backend} backend does not run {activations} activations; it runs {supported}")]
    UnsupportedActivations {
        /// Backend name.
        backend: String,
        /// Asked for.
        activations: String,
        /// Comma-separated list.
        supported: String,
    },
    /// A backend does not run an operation.
    #[error("the {backend} backend does not run the operation {op}, which image models need; --backend cpu does")]
    UnsupportedOp {
        /// Backend name.
        backend: String,
        /// Operation name.
        op: &'static str,
    },
    /// Shapes that do not fit together; a fault of the caller.
    #[error("{op}: {what}: wanted {wanted}, got {got}")]
    Shape {
        /// Operation name.
        op: &'static str,
        /// Which dimension or operand.
        what: String,
        /// The shape that would fit.
        wanted: String,
        /// The shape that came.
        got: String,
    },
    /// Memory ran out before any work began.
    #[error("{what} needs {wanted} bytes on {backend}, {available} are free")]
    OutOfMemory {
        /// What was to be allocated.
        what: String,
        /// Backend name.
        backend: String,
        /// Bytes wanted.
        wanted: u64,
        /// Bytes free.
        available: u64,
    },
    /// A step whose inputs contradict the plan or the cache.
    #[error("step inputs: {0}")]
    Inputs(String),
    /// Bytes of a weight that were kept and do not fit.
    #[error("the kept copy of weight `{weight}` cannot be used: {why}; delete the file that holds it")]
    Kept {
        /// Name of the weight.
        weight: String,
        /// What is wrong.
        why: String,
    },
    /// A handle of another backend, or of none.
    #[error("{0} belongs to another backend")]
    ForeignHandle(&'static str),
    /// The device itself failed.
    #[error("{backend} device: {message}")]
    Device {
        /// Backend name.
        backend: String,
        /// The driver's words.
        message: String,
    },
    /// A weight that cannot be read.
    #[error(transparent)]
    Quant(#[from] onebit_quant::QuantError),
}

//! Checkpoints good and bad: one module per behaviour, files made byte by byte by [`support`].

mod folders;
mod gguf;
mod hostile;
mod kinds;
mod mlx;
mod published;
mod safetensors;
mod support;

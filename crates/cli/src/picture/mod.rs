//! From a prompt to a picture and its file.
//!
//! | file | idea |
//! |---|---|
//! | [`recipe`] | everything that makes a picture what it is, as texts in its file |
//! | [`png`] | pixels and texts to a PNG file, and the texts back |
//! | [`pixels`] | a picture in memory |
//! | [`place`] | names of files, which are not written over and never left half done |
//! | [`tensors`] | noise from a file, latents to one |
//! | [`fingerprint`] | a hash that tells models apart |
//! | [`studio`] | an open model, the prompt cut to what it reads, and the making |
//! | [`forecast`] | how long it will take |
//! | [`progress`] | what a person sees meanwhile |

pub mod fingerprint;
pub mod forecast;
pub mod pixels;
pub mod place;
pub mod png;
pub mod progress;
pub mod recipe;
pub mod studio;
pub mod tensors;

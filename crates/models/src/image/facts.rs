//! Sizes of an image model and of a picture.

use std::fmt;

/// Pixels of a side of the picture that one latent pixel (one row of the transformer) stands for.
pub const PATCH: usize = 16;

/// One of the networks of an image model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ImagePart {
    /// The language model that reads the prompt.
    TextEncoder,
    /// The network that is run once a step.
    Transformer,
    /// The decoder from latents to pixels.
    Vae,
}

impl ImagePart {
    /// In the order in which a picture needs them.
    pub const ALL: [ImagePart; 3] = [ImagePart::TextEncoder, ImagePart::Transformer, ImagePart::Vae];
}

impl fmt::Display for ImagePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ImagePart::TextEncoder => "text encoder",
            ImagePart::Transformer => "transformer",
            ImagePart::Vae => "VAE decoder",
        })
    }
}

/// Width and height of a picture in pixels, multiples of [`PATCH`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ImageSize {
    width: usize,
    height: usize,
}

impl ImageSize {
    /// Largest side: positions beyond it were never trained, and sizes stay far from overflow.
    pub const MAX_SIDE: usize = 4096;
    /// What is made where neither user nor model says otherwise.
    pub const USUAL: ImageSize = ImageSize { width: 512, height: 512 };

    /// A size, or `None` unless both sides are positive multiples of [`PATCH`] up to [`ImageSize::MAX_SIDE`].
    pub fn new(width: usize, height: usize) -> Option<ImageSize> {
        let fits = |side: usize| side > 0 && side.is_multiple_of(PATCH) && side <= Self::MAX_SIDE;
        (fits(width) && fits(height)).then_some(ImageSize { width, height })
    }
    /// Pixels of a row.
    pub fn width(self) -> usize {
        self.width
    }
    /// Rows of pixels.
    pub fn height(self) -> usize {
        self.height
    }
    /// Latent pixels of a row.
    pub fn columns(self) -> usize {
        self.width / PATCH
    }
    /// Rows of latent pixels.
    pub fn rows(self) -> usize {
        self.height / PATCH
    }
    /// Latent pixels: rows of the noise and of every latent.
    pub fn tokens(self) -> usize {
        self.rows() * self.columns()
    }
}

impl fmt::Display for ImageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.width, self.height)
    }
}

/// What is known of an image transformer before its weights are read.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageFacts {
    /// `flux2`.
    pub architecture: &'static str,
    /// Width of the stream.
    pub hidden: usize,
    /// Attention heads.
    pub heads: usize,
    /// Blocks with a stream each for text and image.
    pub double_blocks: usize,
    /// Blocks with one stream.
    pub single_blocks: usize,
    /// Values of a latent pixel.
    pub channels: usize,
    /// Values that it reads of a text token.
    pub text_width: usize,
    /// Matrix elements.
    pub parameters: u64,
    /// Bytes of its matrices in the files.
    pub bytes: u64,
    /// How its blocks are stored, such as `1-bit, groups of 128`.
    pub format: String,
}

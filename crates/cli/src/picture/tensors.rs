//! Noise from a safetensors file, and latents to one.

use anyhow::{Context, Result, bail};
use half::{bf16, f16};
use onebit_engine::pack;
use onebit_models::image::ImageSize;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use sha2::{Digest, Sha256};
use std::path::Path;

/// Noise of a file: packed values, and a hash that tells files apart.
#[derive(Debug, Clone, PartialEq)]
pub struct NoiseFile {
    /// (tokens, channels) row-major.
    pub values: Vec<f32>,
    /// 16 hexadecimal digits of the values' SHA-256.
    pub hash: String,
}

/// Reads the tensor `noise`, or `latents.0` where there is none: packed `[tokens, channels]`, or `[1, channels, rows, columns]` of latent pixels.
///
/// # Errors
/// No such tensor, another shape or type, and values that are no numbers.
pub fn read_noise(path: &Path, size: ImageSize, channels: usize) -> Result<NoiseFile> {
    let file = std::fs::read(path).with_context(|| format!("{} cannot be read", path.display()))?;
    let values = noise(&file, size, channels).with_context(|| path.display().to_string())?;
    let mut hash = Sha256::new();
    values.iter().for_each(|value| hash.update(value.to_le_bytes()));
    let hash: String = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    Ok(NoiseFile { values, hash })
}

fn noise(file: &[u8], size: ImageSize, channels: usize) -> Result<Vec<f32>> {
    let tensors = SafeTensors::deserialize(file).context("it is no safetensors file, or a damaged one")?;
    let names = || {
        let mut names = tensors.names();
        names.sort_unstable();
        names.join(", ")
    };
    // What `--latents-out` writes begins with the noise.
    let tensor = tensors.tensor("noise").or_else(|_| tensors.tensor("latents.0")).ok();
    let tensor = tensor.with_context(|| format!("it has no tensor `noise`; it has {}", names()))?;
    let values = floats(&tensor)?;
    let (packed, planes) = ([size.tokens(), channels], [1, channels, size.rows(), size.columns()]);
    let values = match tensor.shape() {
        shape if shape == packed => values,
        shape if shape == planes => pack(&values, channels),
        shape => bail!("`noise` has the shape {shape:?}; a picture of {size} wants {packed:?} or {planes:?}"),
    };
    match values.iter().position(|value| !value.is_finite()) {
        Some(at) => bail!("`noise` holds {} at place {at}; it must hold numbers", values[at]),
        None => Ok(values),
    }
}

fn floats(tensor: &TensorView<'_>) -> Result<Vec<f32>> {
    let data = tensor.data();
    let pairs = || data.as_chunks::<2>().0.iter();
    Ok(match tensor.dtype() {
        Dtype::F32 => data.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
        Dtype::F16 => pairs().map(|bytes| f16::from_le_bytes(*bytes).to_f32()).collect(),
        Dtype::BF16 => pairs().map(|bytes| bf16::from_le_bytes(*bytes).to_f32()).collect(),
        other => bail!("`noise` is {other:?}; wanted F32, F16 or BF16"),
    })
}

/// A safetensors file of `latents.0`, the noise, and `latents.N`, what step N has made of it; each f32 (tokens, channels).
///
/// # Errors
/// Latents of different sizes.
pub fn latents_file(latents: &[&[f32]], channels: usize) -> Result<Vec<u8>> {
    let bytes: Vec<Vec<u8>> = latents.iter().map(|l| l.iter().flat_map(|v| v.to_le_bytes()).collect()).collect();
    let views = latents.iter().zip(&bytes).enumerate().map(|(step, (values, bytes))| {
        let view = TensorView::new(Dtype::F32, vec![values.len() / channels, channels], bytes)?;
        Ok((format!("latents.{step}"), view))
    });
    let views: Vec<_> = views.collect::<Result<_, safetensors::SafeTensorError>>()?;
    Ok(safetensors::serialize(views, None)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, dtype: Dtype, shape: &[usize], bytes: &[u8]) -> Vec<u8> {
        let view = TensorView::new(dtype, shape.to_vec(), bytes).expect("a tensor");
        safetensors::serialize([(name, view)], None).expect("a file")
    }

    fn f32s(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    #[test]
    fn both_shapes_give_the_same_noise() {
        let size = ImageSize::new(48, 32).expect("a size");
        let planes: Vec<f32> = (0..12).map(|i| i as f32).collect();
        let packed = pack(&planes, 2);
        let read = |shape: &[usize], values: &[f32]| noise(&file("noise", Dtype::F32, shape, &f32s(values)), size, 2);
        assert_eq!(read(&[1, 2, 2, 3], &planes).expect("planes"), packed);
        assert_eq!(read(&[6, 2], &packed).expect("packed"), packed);
        let halves: Vec<u8> = packed.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect();
        assert_eq!(noise(&file("noise", Dtype::BF16, &[6, 2], &halves), size, 2).expect("bf16"), packed);
    }

    #[test]
    fn what_is_wrong_with_noise_is_said() {
        let size = ImageSize::new(48, 32).expect("a size");
        let sentence = |file: &[u8]| format!("{:#}", noise(file, size, 2).expect_err("refused"));
        let zeros = f32s(&[0.0; 12]);
        let shape = sentence(&file("noise", Dtype::F32, &[2, 6], &zeros));
        assert!(shape.contains("[6, 2]") && shape.contains("[1, 2, 2, 3]") && shape.contains("48x32"), "{shape}");
        assert!(sentence(&file("latents", Dtype::F32, &[6, 2], &zeros)).contains("it has latents"));
        assert!(sentence(&file("noise", Dtype::I32, &[6, 2], &zeros)).contains("I32"));
        let mut broken = [0.0; 12];
        broken[3] = f32::NAN;
        assert!(sentence(&file("noise", Dtype::F32, &[6, 2], &f32s(&broken))).contains("place 3"));
        assert!(sentence(b"nothing").contains("safetensors"));
    }

    #[test]
    fn latents_are_named_by_their_step() {
        let (noise, first) = ([1.0f32, 2.0, 3.0, 4.0], [5.0f32, 6.0, 7.0, 8.0]);
        let file = latents_file(&[&noise, &first], 2).expect("a file");
        let tensors = SafeTensors::deserialize(&file).expect("safetensors");
        let last = tensors.tensor("latents.1").expect("there");
        assert_eq!((last.shape(), last.data()), (&[2usize, 2][..], f32s(&first).as_slice()));
        assert!(tensors.tensor("latents.0").is_ok() && tensors.names().len() == 2);
    }
}

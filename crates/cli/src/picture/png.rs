//! PNG files: 8-bit RGB pixels and texts.

use anyhow::{Context, Result, bail};
use png::{BitDepth, ColorType, Decoder, Encoder};
use std::io::{BufRead, Seek};

/// Texts of a file: names and values.
pub type Texts = Vec<(String, String)>;

/// A PNG file of `rgb`, (height, width, 3) row-major, with texts.
///
/// # Errors
/// Pixels of another size, and a black picture: it is what broken numbers become.
pub fn encode(rgb: &[u8], width: usize, height: usize, texts: &[(&str, String)]) -> Result<Vec<u8>> {
    if rgb.len() != width * height * 3 {
        bail!("a picture of {width}x{height} has {} bytes, got {}", width * height * 3, rgb.len());
    }
    // Rounding may leave a 1 where everything is nothing.
    if rgb.iter().all(|level| *level <= 1) {
        bail!(
            "the picture is black all over: something is wrong with the model or its kernels, `onebit doctor` checks both"
        );
    }
    let mut file = Vec::new();
    let side = |side: usize| u32::try_from(side).context("a side of a picture");
    let mut encoder = Encoder::new(&mut file, side(width)?, side(height)?);
    encoder.set_color(ColorType::Rgb);
    encoder.set_depth(BitDepth::Eight);
    for (name, value) in texts {
        // The older kind of chunk is read by more programs, and knows Latin letters alone.
        let plain = value.chars().all(|c| c == '\n' || c.is_ascii_graphic() || c == ' ');
        let (name, value) = ((*name).to_owned(), value.clone());
        if plain { encoder.add_text_chunk(name, value)? } else { encoder.add_itxt_chunk(name, value)? }
    }
    let mut writer = encoder.write_header()?;
    writer.write_image_data(rgb)?;
    writer.finish()?;
    Ok(file)
}

/// The texts of a PNG file that stand before its pixels.
///
/// # Errors
/// A file that is no PNG.
pub fn texts(file: impl BufRead + Seek) -> Result<Texts> {
    let reader = Decoder::new(file).read_info().context("it is no PNG file, or a damaged one")?;
    let info = reader.info();
    let old = info.uncompressed_latin1_text.iter().map(|chunk| (chunk.keyword.clone(), chunk.text.clone()));
    let new = info.utf8_text.iter().map(|chunk| Ok((chunk.keyword.clone(), chunk.get_text()?)));
    old.map(Ok).chain(new).collect::<Result<Texts, png::DecodingError>>().context("a text in it cannot be read")
}

/// The pixels of an 8-bit RGB file: (height, width, 3) row-major, with width and height.
///
/// # Errors
/// A file that is no PNG, or of another kind.
pub fn decode(file: impl BufRead + Seek) -> Result<(Vec<u8>, usize, usize)> {
    let mut reader = Decoder::new(file).read_info().context("it is no PNG file, or a damaged one")?;
    let size = reader.output_buffer_size().context("it is too large")?;
    let mut pixels = vec![0; size];
    let frame = reader.next_frame(&mut pixels).context("its pixels are damaged")?;
    if (frame.color_type, frame.bit_depth) != (ColorType::Rgb, BitDepth::Eight) {
        bail!("it is no 8-bit RGB picture");
    }
    pixels.truncate(frame.buffer_size());
    Ok((pixels, frame.width as usize, frame.height as usize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    #[test]
    fn pixels_and_texts_come_back() {
        let rgb: Vec<u8> = (0..3 * 5 * 7).map(|i| (i * 37 % 256) as u8).collect();
        let wanted = [
            ("prompt", "盆栽 \u{1f333} \"and\"\nmore".to_owned()),
            ("seed", "42".to_owned()),
            ("empty", String::new()),
        ];
        let file = encode(&rgb, 5, 7, &wanted).expect("a file");
        assert_eq!(decode(Cursor::new(&file)).expect("pixels"), (rgb, 5, 7));
        let mut got = texts(Cursor::new(&file)).expect("texts");
        got.sort();
        let mut wanted: Texts = wanted.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect();
        wanted.sort();
        assert_eq!(got, wanted);
        assert!(texts(Cursor::new(b"GIF89a")).is_err());
        assert!(texts(Cursor::new(&file[..20])).is_err());
    }

    #[test]
    fn black_is_an_error() {
        let error = encode(&[0; 48], 4, 4, &[]).expect_err("black").to_string();
        assert!(error.contains("black"), "{error}");
        assert!(encode(&[7; 48], 4, 4, &[]).is_ok());
        assert!(encode(&[7; 47], 4, 4, &[]).is_err());
    }
}

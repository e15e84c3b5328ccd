//! Pictures side by side: a heading for each row and column, and words below each picture.

use crate::picture::pixels::Pixels;
use ab_glyph::{Font, FontRef, ScaleFont, point};
use anyhow::{Context, Result};

/// Latin, Greek and Cyrillic letters; what it lacks is drawn as a box.
const FONT: &[u8] = include_bytes!("../../../assets/NotoSans-Subset.ttf");

const PAPER: [u8; 3] = [250, 249, 246];
const INK: [u8; 3] = [36, 35, 31];
const SOFT: [u8; 3] = [107, 103, 93];
const ALARM: [u8; 3] = [163, 52, 42];
const ALARM_PAPER: [u8; 3] = [249, 233, 230];

/// Pixels.
const MARGIN: usize = 28;
const GAP: usize = 20;
const PAD: usize = 14;
const LARGE: f32 = 22.0;
const SMALL: f32 = 16.0;
/// Largest side of a picture on the sheet, and the smallest width of a column, which words need.
const MOST: usize = 512;
const LEAST: usize = 240;
/// Smallest height of a cell with a reason.
const LEAST_REASON: usize = 120;
const HEADING_LINES: usize = 3;

/// A column: what all its pictures have in common.
pub(super) struct Column {
    /// The first line of the heading, in large letters.
    pub(super) title: String,
    /// More lines.
    pub(super) words: Vec<String>,
    /// Width and height of its pictures in pixels.
    pub(super) size: (usize, usize),
}

/// What is in a cell.
pub(super) enum Content {
    /// A picture.
    Picture(Pixels),
    /// Why there is none.
    Error(String),
}

/// A cell and the words below it.
pub(super) struct Cell {
    pub(super) content: Content,
    pub(super) words: Vec<String>,
}

/// A row: its heading, and a cell for each column.
pub(super) struct Row {
    pub(super) heading: String,
    pub(super) words: String,
    pub(super) cells: Vec<Cell>,
}

/// Draws a sheet.
///
/// # Errors
/// A fault of the font, which is part of the program.
pub(super) fn draw(columns: &[Column], rows: &[Row]) -> Result<Pixels> {
    let pen = Pen::new()?;
    let boxes: Vec<(usize, usize)> = columns.iter().map(|c| shrunk(c.size)).collect();
    let widths: Vec<usize> = boxes.iter().map(|(width, _)| (*width).max(LEAST)).collect();
    let inner: usize = widths.iter().sum::<usize>() + GAP * columns.len().saturating_sub(1);
    let reasons = rows.iter().flat_map(|row| &row.cells).any(|cell| matches!(cell.content, Content::Error(_)));
    let least = if reasons { LEAST_REASON } else { 0 };
    let tallest = boxes.iter().map(|(_, height)| *height).max().unwrap_or(0).max(least);

    let heads: Vec<Vec<String>> =
        columns.iter().zip(&widths).map(|(c, width)| pen.wrap(&c.title, LARGE, *width, HEADING_LINES)).collect();
    let head_words = columns.iter().map(|c| c.words.len()).max().unwrap_or(0);
    let head_lines = heads.iter().map(Vec::len).max().unwrap_or(0);
    let head = line(LARGE) * head_lines + line(SMALL) * head_words;
    let headings: Vec<Vec<String>> = rows.iter().map(|r| pen.wrap(&r.heading, LARGE, inner, HEADING_LINES)).collect();
    let foot = |row: &Row| line(SMALL) * row.cells.iter().map(|c| c.words.len()).max().unwrap_or(0);
    let row_height = |(row, heading): (&Row, &Vec<String>)| {
        GAP + line(LARGE) * heading.len() + line(SMALL) + PAD + tallest + PAD / 2 + foot(row)
    };
    let height = MARGIN + head + rows.iter().zip(&headings).map(row_height).sum::<usize>() + MARGIN;

    let mut sheet = Pixels::filled(MARGIN + inner + MARGIN, height, PAPER);
    let mut x = MARGIN;
    for ((column, title), width) in columns.iter().zip(&heads).zip(&widths) {
        let mut y = pen.lines(&mut sheet, (x, MARGIN), title, LARGE, INK);
        for words in &column.words {
            y = pen.lines(&mut sheet, (x, y), &pen.wrap(words, SMALL, *width, 1), SMALL, SOFT);
        }
        x += width + GAP;
    }
    let mut y = MARGIN + head;
    for (row, heading) in rows.iter().zip(&headings) {
        y = pen.lines(&mut sheet, (MARGIN, y + GAP), heading, LARGE, INK);
        y = pen.lines(&mut sheet, (MARGIN, y), std::slice::from_ref(&row.words), SMALL, SOFT) + PAD;
        let mut x = MARGIN;
        for ((cell, size), width) in row.cells.iter().zip(&boxes).zip(&widths) {
            draw_cell(&pen, &mut sheet, (x, y), cell, *size, *width);
            let mut below = y + tallest + PAD / 2;
            for words in &cell.words {
                below = pen.lines(&mut sheet, (x, below), &pen.wrap(words, SMALL, *width, 1), SMALL, SOFT);
            }
            x += width + GAP;
        }
        y += tallest + PAD / 2 + foot(row);
    }
    Ok(sheet)
}

fn draw_cell(pen: &Pen, sheet: &mut Pixels, (x, y): (usize, usize), cell: &Cell, size: (usize, usize), width: usize) {
    match &cell.content {
        Content::Picture(picture) => sheet.lay((x, y), &picture.shrunk(shrinking((picture.width(), picture.height())))),
        Content::Error(reason) => {
            let height = size.1.max(LEAST_REASON);
            sheet.fill((x, y), (width, height), ALARM_PAPER);
            let lines = ((height - 2 * PAD) / line(SMALL)).max(1);
            let words = pen.wrap(reason, SMALL, width - 2 * PAD, lines);
            pen.lines(sheet, (x + PAD, y + PAD), &words, SMALL, ALARM);
        }
    }
}

/// By how much a picture is shrunk to fit on the sheet.
fn shrinking((width, height): (usize, usize)) -> usize {
    width.max(height).div_ceil(MOST).max(1)
}

fn shrunk(size: (usize, usize)) -> (usize, usize) {
    let by = shrinking(size);
    (size.0 / by, size.1 / by)
}

/// Height of a line of letters of this size.
fn line(size: f32) -> usize {
    (size * 1.4).round() as usize
}

struct Pen {
    font: FontRef<'static>,
}

impl Pen {
    fn new() -> Result<Self> {
        Ok(Pen { font: FontRef::try_from_slice(FONT).context("the font of the program is damaged")? })
    }

    fn width(&self, text: &str, size: f32) -> f32 {
        let font = self.font.as_scaled(size);
        text.chars().map(|c| font.h_advance(font.glyph_id(c))).sum()
    }

    /// Lines that are no wider than `width`, at most so many; what does not fit ends in an ellipsis.
    fn wrap(&self, text: &str, size: f32, width: usize, most: usize) -> Vec<String> {
        let fits = |line: &str| self.width(line, size) <= width as f32;
        let mut lines = vec![String::new()];
        for word in text.split_whitespace() {
            let last = lines.len() - 1;
            let joined = if lines[last].is_empty() { word.to_owned() } else { format!("{} {word}", lines[last]) };
            if fits(&joined) {
                lines[last] = joined;
                continue;
            }
            // A word that is wider than a line, or a text without spaces, is cut where the line ends.
            let mut rest = if lines[last].is_empty() { lines.pop().unwrap_or_default() } else { String::new() };
            for c in word.chars() {
                rest.push(c);
                if !fits(&rest) {
                    rest.pop();
                    lines.push(std::mem::take(&mut rest));
                    rest.push(c);
                }
            }
            lines.push(rest);
        }
        if lines.len() > most {
            lines.truncate(most);
            if let Some(last) = lines.last_mut() {
                while !last.is_empty() && !fits(&format!("{last}…")) {
                    last.pop();
                }
                last.push('…');
            }
        }
        lines
    }

    /// Draws lines below each other; returns where the next one would begin.
    fn lines(
        &self,
        sheet: &mut Pixels,
        (x, mut y): (usize, usize),
        lines: &[String],
        size: f32,
        ink: [u8; 3],
    ) -> usize {
        for text in lines {
            self.text(sheet, (x as f32, y as f32), text, size, ink);
            y += line(size);
        }
        y
    }

    fn text(&self, sheet: &mut Pixels, (mut x, y): (f32, f32), text: &str, size: f32, ink: [u8; 3]) {
        let font = self.font.as_scaled(size);
        let base = y + (line(size) as f32 - size) / 2.0 + font.ascent();
        for c in text.chars() {
            let glyph = font.glyph_id(c).with_scale_and_position(size, point(x, base));
            x += font.h_advance(glyph.id);
            let Some(outline) = self.font.outline_glyph(glyph) else { continue };
            let corner = outline.px_bounds().min;
            outline.draw(|dx, dy, cover| {
                let (at_x, at_y) = (corner.x + dx as f32, corner.y + dy as f32);
                if at_x < 0.0 || at_y < 0.0 {
                    return;
                }
                if let Some(pixel) = sheet.get_mut(at_x as usize, at_y as usize) {
                    for (level, ink) in pixel.iter_mut().zip(ink) {
                        let mixed = f32::from(*level) * (1.0 - cover) + f32::from(ink) * cover;
                        *level = mixed.round().clamp(0.0, 255.0) as u8;
                    }
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(width: usize, height: usize, colour: [u8; 3]) -> Content {
        Content::Picture(Pixels::filled(width, height, colour))
    }

    #[test]
    fn every_cell_has_its_place() {
        let column = |title: &str, size| Column { title: title.to_owned(), words: vec!["512x512".to_owned()], size };
        let columns = [column("one", (512, 512)), column("two", (1024, 768))];
        let words = || vec!["3.2 s, 1.90 GB".to_owned()];
        let row = |a, b| Row {
            heading: "A bonsai tree — бонсай δέντρο".to_owned(),
            words: "seed 7".to_owned(),
            cells: vec![Cell { content: a, words: words() }, Cell { content: b, words: words() }],
        };
        let error = || Content::Error("a picture of 1024x768 needs 9 GB, 4 GB are free: use --low-memory".to_owned());
        let rows = [
            row(picture(512, 512, [200, 10, 10]), picture(1024, 768, [10, 10, 200])),
            row(picture(512, 512, [10, 200, 10]), error()),
        ];
        let sheet = draw(&columns, &rows).expect("a sheet");
        assert_eq!(sheet.width(), 2 * MARGIN + GAP + 512 + 512);
        let count = |colour: [u8; 3]| sheet.bytes().as_chunks::<3>().0.iter().filter(|p| **p == colour).count();
        assert_eq!(count([200, 10, 10]), 512 * 512);
        assert_eq!(count([10, 200, 10]), 512 * 512);
        assert_eq!(count([10, 10, 200]), 512 * 384, "shrunk to fit");
        // Letters are thin: most of their pixels lie between the two colours.
        let paper = count(ALARM_PAPER);
        assert!(
            (512 * 300..512 * 384 - 500).contains(&paper) && count(ALARM) > 0,
            "{paper}, {}: the reason is written",
            count(ALARM)
        );
        assert!(count(INK) > 200, "headings are written");
    }

    #[test]
    fn lines_are_no_wider_than_their_place() {
        let pen = Pen::new().expect("a font");
        let prompt = "a long prompt about nothing in particular ".repeat(9);
        for text in [prompt.as_str(), &"盆栽".repeat(200), "one", ""] {
            for (width, most) in [(100, 2), (300, 50), (3000, 3)] {
                let lines = pen.wrap(text, SMALL, width, most);
                assert!(lines.len() <= most && !lines.is_empty());
                assert!(lines.iter().all(|l| pen.width(l, SMALL) <= width as f32), "{lines:?}");
            }
        }
        assert!(pen.wrap(&prompt, SMALL, 100, 2)[1].ends_with('…'));
        let all = pen.wrap(&prompt, SMALL, 300, 500);
        assert_eq!(all.join(" "), prompt.trim(), "nothing is lost");
    }

    #[test]
    fn the_font_has_the_letters_of_the_sheet() {
        let pen = Pen::new().expect("a font");
        let own = "0123456789 x,.;:-–—…“”()/%+ abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZäéßñøżЖяλ";
        let absent: String = own.chars().filter(|c| *c != ' ' && pen.font.glyph_id(*c).0 == 0).collect();
        assert_eq!(absent, "");
    }
}

//! The built-in picture models draw what prompts say that they never saw in training: colours, shapes, counts and places,
//! judged by looking at the pixels.

mod checker;

use crate::support::{arg, onebit};
use checker::{Area, COLOURS, SHAPES, areas};
use onebit::builtin::BuiltIn;
use onebit::picture::png;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::Cursor;

/// Prompts of the held-out side of the training data with what they describe, drawn by its generator
/// (`models/training/sprout/held_out.py`).
#[derive(Deserialize)]
struct Recorded {
    /// Pictures that must be right, by the model's name.
    floors: BTreeMap<String, usize>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    prompt: String,
    /// Colour of the ground.
    ground: String,
    groups: Vec<Group>,
    /// How the first group stands to the second: `above`, `below`, `left`, `right` or `inside`.
    relation: Option<String>,
    /// Column and row of three by three.
    place: Option<[usize; 2]>,
}

#[derive(Deserialize, PartialEq)]
struct Group {
    colour: String,
    shape: String,
    count: usize,
}

/// Twice the middle of areas.
fn middle(areas: &[Area]) -> [f64; 2] {
    let mean = |of: fn(&Area) -> usize| areas.iter().map(of).sum::<usize>() as f64 / areas.len() as f64;
    [mean(|a| a.left + a.right) / 2.0, mean(|a| a.top + a.bottom) / 2.0]
}

impl Case {
    /// What is wrong with a picture of 128 x 128 pixels.
    fn fault(&self, ground: usize, found: &[Area]) -> Option<String> {
        if COLOURS[ground] != self.ground {
            return Some(format!("the ground is {}", COLOURS[ground]));
        }
        let of = |group: &Group| -> Vec<Area> {
            let same = |a: &&Area| COLOURS[a.colour] == group.colour && SHAPES[a.shape] == group.shape;
            found.iter().filter(same).copied().collect()
        };
        let alike = |a: &Group, b: &Group| a.colour == b.colour && a.shape == b.shape;
        let wanted = |group: &Group| self.groups.iter().filter(|g| alike(g, group)).map(|g| g.count).sum::<usize>();
        let whole: usize = self.groups.iter().map(|g| g.count).sum();
        if found.len() != whole || self.groups.iter().any(|group| of(group).len() != wanted(group)) {
            let seen: Vec<String> =
                found.iter().map(|a| format!("{} {}", COLOURS[a.colour], SHAPES[a.shape])).collect();
            return Some(format!("it shows {}", seen.join(", ")));
        }
        let sets: Vec<Vec<Area>> = self.groups.iter().map(of).collect();
        if let (Some(relation), [first, second]) = (self.relation.as_deref(), &sets[..])
            && !alike(&self.groups[0], &self.groups[1])
        {
            let ([ax, ay], [bx, by]) = (middle(first), middle(second));
            let (a, b) = (first[0], second[0]);
            let stands = match relation {
                "above" => by - ay >= 6.0,
                "below" => ay - by >= 6.0,
                "left" => bx - ax >= 6.0,
                "right" => ax - bx >= 6.0,
                _ => a.left > b.left && a.right < b.right && a.top > b.top && a.bottom < b.bottom,
            };
            if !stands {
                return Some(format!("{relation} does not hold: {first:?}, {second:?}"));
            }
        }
        let third = |v: f64| usize::from(v >= 45.0) + usize::from(v >= 83.0);
        let place = middle(&sets[0]).map(third);
        (self.place.is_some_and(|wanted| wanted != place)).then(|| format!("it stands at {place:?}"))
    }
}

#[test]
fn held_out_prompts_are_drawn_as_they_say() {
    let recorded: Recorded = serde_json::from_str(include_str!("held_out.json")).expect("the file of held_out.py");
    let drawing = BuiltIn::ALL.into_iter().filter(|model| model.draws());
    let right: BTreeMap<String, usize> =
        drawing.map(|model| (model.name().to_owned(), drawn_right(&recorded, model.name()))).collect();
    println!("{right:?} of {} are right", recorded.cases.len());
    assert!(right.keys().eq(recorded.floors.keys()), "a floor for each: {right:?}");
    assert!(
        recorded.floors.iter().all(|(model, floor)| right[model] >= *floor),
        "{right:?}, floors {:?}",
        recorded.floors
    );
    let default = right[BuiltIn::IMAGE.name()];
    assert!(right.values().all(|others| *others <= default), "the better one draws when none is named: {right:?}");
}

/// How many pictures of a model are right. Which are not, and why, is printed.
fn drawn_right(recorded: &Recorded, model: &str) -> usize {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("p.png");
    let mut pictures = Vec::new();
    for (seed, case) in recorded.cases.iter().enumerate() {
        let seed = seed.to_string();
        let args = ["image", model, "--prompt", &case.prompt, "--seed", &seed, "--force", "--quiet", "-o", arg(&file)];
        onebit(&args).run().ok();
        let (rgb, width, height) =
            png::decode(Cursor::new(std::fs::read(&file).expect("the file"))).expect("a picture");
        assert_eq!((width, height), (128, 128), "the model's own size");
        pictures.push(areas(&rgb, width, height));
    }
    let judge = |shift: usize| -> Vec<String> {
        let cases = recorded.cases.iter().cycle().skip(shift);
        let faults = pictures.iter().zip(cases).map(|((ground, found), case)| (case, case.fault(*ground, found)));
        faults.filter_map(|(case, fault)| Some(format!("“{}”: {}", case.prompt, fault?))).collect()
    };
    let faults = judge(0);
    println!("{model}: {faults:#?}");
    // The judge is not blind: as pictures of the next prompt they are all wrong.
    assert_eq!(judge(1).len(), pictures.len());
    pictures.len() - faults.len()
}

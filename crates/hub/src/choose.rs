//! Which files of a repository to use.

use crate::error::HubError;
use crate::file_format::{WeightFormat, split_number};
use crate::listing::RepoFile;
use crate::repo_ref::RepoRef;

/// Files to download or open, and why these.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The weights' format.
    pub format: WeightFormat,
    /// Names of the weight files, in order; several for shards.
    pub weights: Vec<String>,
    /// All files that the model needs, weights included.
    pub files: Vec<RepoFile>,
    /// One sentence for the person.
    pub reason: String,
}

impl Choice {
    /// Bytes of all its files, where known.
    pub fn bytes(&self) -> u64 {
        self.files.iter().filter_map(|f| f.size).sum()
    }
}

/// Weights that belong together: one GGUF file or its splits, or the
/// safetensors files of one folder.
#[derive(Debug, Clone)]
struct Candidate {
    format: WeightFormat,
    /// Folder of safetensors files, with its slash; `None` for GGUF.
    folder: Option<String>,
    weights: Vec<String>,
}

impl Candidate {
    fn title(&self) -> String {
        match self.weights.as_slice() {
            [one] => format!("{one} ({})", self.format),
            several => format!("{} and {} more ({})", several[0], several.len() - 1, self.format),
        }
    }
}

/// Picks the weights. With a selector in `repo` they are those of that type or
/// file name, or of a name that ends so. Without, they are the smallest packed
/// weights whose format `supported` accepts. Projectors, drafters and cache
/// biases are never chosen.
pub fn choose(repo: &RepoRef, files: &[RepoFile], supported: &dyn Fn(&str) -> bool) -> Result<Choice, HubError> {
    let candidates = candidates(repo, files);
    let list = |of: &[&Candidate]| of.iter().map(|c| c.title()).collect::<Vec<_>>().join(", ");
    let all: Vec<&Candidate> = candidates.iter().collect();
    let nothing = |found: String| HubError::NothingSupported { repo: repo.id(), found };
    if all.is_empty() {
        return Err(nothing("it has neither a GGUF file nor safetensors files".into()));
    }

    if let Some(selector) = &repo.selector {
        if let Some(file) = files.iter().find(|f| is_helper(&f.name) && fits_name(&f.name, selector)) {
            return Err(HubError::Helper { repo: repo.id(), file: file.name.clone() });
        }
        let exact = all.iter().filter(|c| c.weights.iter().any(|w| w == selector));
        let mut fitting: Vec<&Candidate> = exact.copied().collect();
        if fitting.is_empty() {
            fitting = all.iter().filter(|c| fits(c, selector)).copied().collect();
        }
        return match fitting.as_slice() {
            [] => Err(HubError::NoMatch { repo: repo.id(), selector: selector.clone(), found: list(&all) }),
            [one] if !supported(one.format.as_str()) => {
                Err(nothing(format!("{} is not supported on this machine", one.title())))
            }
            [one] => Ok(choice(one, files, format!("{}: asked for as \"{selector}\"", one.title()))),
            several => Err(HubError::Ambiguous { repo: repo.id(), selector: selector.clone(), found: list(several) }),
        };
    }

    let mut runnable: Vec<&Candidate> = all.iter().filter(|c| supported(c.format.as_str())).copied().collect();
    runnable.sort_by_key(|c| (c.format.rank(), c.weights.clone()));
    let Some(best) = runnable.first() else {
        return Err(nothing(format!("it has {}, none of them supported on this machine", list(&all))));
    };
    let why = match (all.len(), best.format.is_packed()) {
        (1, _) => "the only weights in the repository".to_owned(),
        (n, true) => format!("the best packed weights of {n} that run on this machine"),
        (n, false) => format!("the only kind of {n} that runs on this machine"),
    };
    Ok(choice(best, files, format!("{}: {why}", best.title())))
}

fn candidates(repo: &RepoRef, files: &[RepoFile]) -> Vec<Candidate> {
    let weights = |end: &str| {
        let mut names: Vec<&str> = files
            .iter()
            .map(|f| f.name.as_str())
            .filter(|n| n.to_ascii_lowercase().ends_with(end) && !is_helper(n))
            .collect();
        names.sort_unstable();
        names
    };
    if is_image_pack(files) {
        let weights: Vec<String> = weights(".safetensors").into_iter().map(str::to_owned).collect();
        let folder = Some(String::new());
        return vec![Candidate { format: WeightFormat::image(), folder, weights }];
    }
    let mut out: Vec<Candidate> = Vec::new();
    for name in weights(".gguf") {
        let format = WeightFormat::of_gguf(name);
        let group = split_group(name);
        let same = |c: &&mut Candidate| group.is_some() && split_group(&c.weights[0]) == group;
        match out.iter_mut().find(same) {
            Some(candidate) => candidate.weights.push(name.to_owned()),
            None => out.push(Candidate { format, folder: None, weights: vec![name.to_owned()] }),
        }
    }
    for name in weights(".safetensors") {
        let folder = folder_of(name);
        match out.iter_mut().find(|c| c.folder.as_deref() == Some(folder)) {
            Some(candidate) => candidate.weights.push(name.to_owned()),
            None => out.push(Candidate {
                format: WeightFormat::of_safetensors(&format!("{}/{folder}", repo.name)),
                folder: Some(folder.to_owned()),
                weights: vec![name.to_owned()],
            }),
        }
    }
    out
}

fn choice(candidate: &Candidate, files: &[RepoFile], reason: String) -> Choice {
    let image = candidate.format == WeightFormat::image();
    let needed = |name: &str| match &candidate.folder {
        _ if candidate.weights.iter().any(|w| w == name) => true,
        None => false,
        Some(_) if image => is_companion(name),
        Some(folder) => is_companion(name) && [folder.as_str(), ""].contains(&folder_of(name)),
    };
    Choice {
        format: candidate.format.clone(),
        weights: candidate.weights.clone(),
        files: files.iter().filter(|f| needed(&f.name)).cloned().collect(),
        reason,
    }
}

/// Files beside safetensors that a model needs: configuration, tokenizer,
/// chat template.
fn is_companion(name: &str) -> bool {
    let base = name.rsplit('/').next().unwrap_or(name);
    base.ends_with(".json") || base.ends_with(".jinja") || base == "merges.txt" || base == "vocab.txt"
}

/// Weights that are not the language model's own.
fn is_helper(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let weights = name.ends_with(".gguf") || name.ends_with(".safetensors");
    weights && ["mmproj", "dspark", "draft", "kv-bias", "kv_bias", "imatrix"].iter().any(|word| name.contains(word))
}

fn is_image_pack(files: &[RepoFile]) -> bool {
    files
        .iter()
        .any(|f| f.name == "model_index.json" || f.name.starts_with("transformer") && f.name.ends_with(".safetensors"))
}

fn fits(candidate: &Candidate, selector: &str) -> bool {
    candidate.format.as_str().eq_ignore_ascii_case(selector)
        || candidate.folder.as_deref().is_some_and(|f| f.trim_end_matches('/') == selector)
        || candidate.weights.iter().any(|w| fits_name(w, selector))
}

/// Whether a file name, with or without its extension, ends with the selector,
/// at the start of a word.
fn fits_name(name: &str, selector: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let selector = selector.to_ascii_lowercase();
    let stem = name.rsplit_once('.').map_or(name.as_str(), |(stem, _)| stem);
    [name.as_str(), stem].into_iter().any(|text| {
        text.strip_suffix(selector.as_str()).is_some_and(|head| head.is_empty() || head.ends_with(['/', '-', '.']))
    })
}

/// Folder of a file, with its slash; empty at the root.
fn folder_of(name: &str) -> &str {
    name.rfind('/').map_or("", |at| &name[..=at])
}

/// What the splits of one GGUF file have in common.
fn split_group(name: &str) -> Option<(&str, u32)> {
    let stem = name.rsplit_once('.')?.0;
    split_number(stem).map(|(stem, _, count)| (stem, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(names: &[&str]) -> Vec<RepoFile> {
        names.iter().map(|n| RepoFile { name: (*n).into(), size: Some(1), ..RepoFile::default() }).collect()
    }

    fn pick(text: &str, names: &[&str], no: &[&str]) -> Result<Choice, HubError> {
        let repo = RepoRef::parse(text).expect("a reference");
        choose(&repo, &files(names), &|format| !no.contains(&format))
    }

    const GGUF: [&str; 8] = [
        ".gitattributes",
        "README.md",
        "Ternary-Bonsai-27B-F16.gguf",
        "Ternary-Bonsai-27B-PQ2_0.gguf",
        "Ternary-Bonsai-27B-Q2_0.gguf",
        "Ternary-Bonsai-27B-Q2_0_g64.gguf",
        "Ternary-Bonsai-27B-dspark-PQ2_0.gguf",
        "Ternary-Bonsai-27B-mmproj-BF16.gguf",
    ];

    #[test]
    fn best_packed_gguf() {
        let c = pick("o/n", &GGUF, &[]).expect("a choice");
        assert_eq!(c.weights, ["Ternary-Bonsai-27B-PQ2_0.gguf"]);
        assert_eq!(c.files.len(), 1);
        assert_eq!(
            c.reason,
            "Ternary-Bonsai-27B-PQ2_0.gguf (PQ2_0): the best packed weights of 4 that run on this machine"
        );
        let c = pick("o/n", &GGUF, &["PQ2_0"]).expect("a choice");
        assert_eq!(c.format.as_str(), "Q2_0");
        let c = pick("o/n", &GGUF, &["PQ2_0", "Q2_0", "Q2_0_g64"]).expect("a choice");
        assert_eq!(c.reason, "Ternary-Bonsai-27B-F16.gguf (F16): the only kind of 4 that runs on this machine");
    }

    #[test]
    fn selectors() {
        for selector in ["Q2_0", "q2_0", "Ternary-Bonsai-27B-Q2_0.gguf", "27B-Q2_0.gguf", "27B-Q2_0"] {
            let c = pick(&format!("o/n:{selector}"), &GGUF, &[]).expect("a choice");
            assert_eq!(c.weights, ["Ternary-Bonsai-27B-Q2_0.gguf"], "{selector}");
        }
        assert!(matches!(pick("o/n:Q9", &GGUF, &[]), Err(HubError::NoMatch { .. })));
        assert!(matches!(pick("o/n:mmproj-BF16.gguf", &GGUF, &[]), Err(HubError::Helper { .. })));
        assert!(matches!(pick("o/n:Q2_0", &GGUF, &["Q2_0"]), Err(HubError::NothingSupported { .. })));
        let twice = ["a/m-Q1_0.gguf", "b/m-Q1_0.gguf"];
        assert!(matches!(pick("o/n:Q1_0", &twice, &[]), Err(HubError::Ambiguous { .. })));
        assert_eq!(pick("o/n:b/m-Q1_0.gguf", &twice, &[]).expect("one").weights, ["b/m-Q1_0.gguf"]);
    }

    #[test]
    fn mlx_folder_with_its_companions() {
        let names = [
            "README.md",
            "chat_template.jinja",
            "config.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "tokenizer.json",
            "old/model.safetensors",
            "old/config.json",
        ];
        let c = pick("o/Bonsai-27B-mlx-1bit:MLX 1-bit", &names[..7], &[]).expect("a choice");
        assert_eq!(c.weights.len(), 2);
        assert_eq!(c.files.len(), 6);
        let c = pick("o/Bonsai-27B-mlx-1bit:old", &names, &[]).expect("a choice");
        assert_eq!(c.weights, ["old/model.safetensors"]);
        assert!(c.files.iter().any(|f| f.name == "tokenizer.json"));
    }

    #[test]
    fn mlx_before_gguf_in_one_repository() {
        let names = ["m-Q1_0.gguf", "mlx-1bit/model.safetensors", "mlx-1bit/config.json"];
        let c = pick("o/n", &names, &[]).expect("a choice");
        assert_eq!(c.format.as_str(), "MLX 1-bit");
        let c = pick("o/n", &names, &["MLX 1-bit"]).expect("a choice");
        assert_eq!(c.format.as_str(), "Q1_0");
    }

    #[test]
    fn splits_stay_together() {
        let names = ["m-Q1_0-00001-of-00002.gguf", "m-Q1_0-00002-of-00002.gguf", "m-Q8_0.gguf"];
        let c = pick("o/n:Q1_0", &names, &[]).expect("a choice");
        assert_eq!(c.weights, names[..2]);
    }

    #[test]
    fn image_pack_is_named() {
        let names = ["model_index.json", "transformer-packed-mflux/0.safetensors", "vae/x.safetensors"];
        let e = pick("o/n", &names, &["image pack"]).expect_err("not supported").to_string();
        assert!(e.contains("image pack"), "{e}");
        assert_eq!(pick("o/n", &names, &[]).expect("all").files.len(), 3);
    }

    #[test]
    fn nothing_there() {
        let e = pick("o/n", &["README.md", "x-mmproj-F16.gguf"], &[]).expect_err("none");
        assert!(matches!(e, HubError::NothingSupported { .. }));
    }
}

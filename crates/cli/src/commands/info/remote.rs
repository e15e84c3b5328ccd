//! A repository described from its headers, which are read over HTTP ranges.

use super::report::Report;
use crate::args::InfoArgs;
use crate::{backends, resolve, terminal};
use anyhow::{Context, Result, bail};
use onebit_checkpoint::{Inventory, Parsed, Problem, gguf, safetensors};
use onebit_hub::{Choice, Client, HubConfig, Listing, RangeReader, RepoRef, choose};
use onebit_ops::Backend;
use std::path::Path;

/// First bytes of a weight file to ask for; enough for the header of most.
const FIRST_READ: usize = 256 << 10;
/// Longest header that is read over the network. The largest real ones, GGUF vocabularies, are about 12 MB.
const LONGEST_HEADER: u64 = 128 << 20;
/// Longest configuration.
const LONGEST_CONFIG: usize = 4 << 20;

/// Reads the headers of the files that would be pulled.
pub(super) fn describe(repo: &RepoRef, args: &InfoArgs, backend: &dyn Backend) -> Result<Report> {
    resolve::refuse_unsupported(repo)?;
    let config = HubConfig::from_env()?;
    let client = Client::new(&config);
    let listing = client.list(repo)?;
    let choice = choose(repo, &listing.files, &|format| backends::runs_file(backend, format))?;
    terminal::say(&format!(
        "note: {}; {} to download, described from its headers",
        choice.reason,
        terminal::bytes(choice.bytes())
    ));
    let remote = Remote { client: &client, repo, listing: &listing, choice: &choice };
    let inventory = remote.inventory(args.run.q2_0_group).with_context(|| repo.to_string())?;
    let mut report = Report::of(&repo.to_string(), &inventory, &args.run, backend)?;
    report.path = format!("{}/{}", config.endpoint, repo.id());
    Ok(report)
}

struct Remote<'a> {
    client: &'a Client,
    repo: &'a RepoRef,
    listing: &'a Listing,
    choice: &'a Choice,
}

impl Remote<'_> {
    fn inventory(&self, q2_0_group: Option<u16>) -> Result<Inventory> {
        let first = self.choice.weights.first().map(String::as_str).unwrap_or_default();
        let label = Path::new(self.repo.name.as_str());
        if first.to_ascii_lowercase().ends_with(".gguf") {
            let headers = self.headers(gguf::Header::parse)?;
            return Ok(Inventory::from_gguf(Path::new(first), headers, q2_0_group)?);
        }
        let folder = first.rsplit_once('/').map_or("", |(folder, _)| folder);
        let name = if folder.is_empty() { "config.json".to_owned() } else { format!("{folder}/config.json") };
        let config = match self.listing.files.iter().any(|f| f.name == name) {
            true => serde_json::from_slice(&self.reader(&name)?.read_at(0, LONGEST_CONFIG)?).context(name)?,
            false => serde_json::Value::Null,
        };
        Ok(Inventory::from_safetensors(label, config, &self.headers(safetensors::Header::parse)?)?)
    }

    fn reader(&self, name: &str) -> Result<RangeReader<'_>> {
        Ok(RangeReader::new(self.client, self.repo, &self.listing.commit, name)?)
    }

    /// The header of every weight file, with the file's base name.
    fn headers<T>(&self, parse: impl Fn(&[u8], u64) -> Result<Parsed<T>, Problem>) -> Result<Vec<(String, T)>> {
        let mut headers = Vec::new();
        for name in &self.choice.weights {
            let base = name.rsplit('/').next().unwrap_or(name).to_owned();
            headers.push((base, self.header(name, &parse).with_context(|| name.clone())?));
        }
        Ok(headers)
    }

    fn header<T>(&self, name: &str, parse: impl Fn(&[u8], u64) -> Result<Parsed<T>, Problem>) -> Result<T> {
        let mut reader = self.reader(name)?;
        let mut bytes = reader.read_at(0, FIRST_READ)?;
        let Some(size) = reader.size() else { bail!("the server does not say how long the file is") };
        loop {
            match parse(&bytes, size)? {
                Parsed::Header(header) => return Ok(header),
                Parsed::NeedBytes(wanted) => {
                    if wanted > LONGEST_HEADER {
                        bail!("its header is {} long, more than is read before a download", terminal::bytes(wanted));
                    }
                    // Doubling keeps the number of requests small where the length shows only bit by bit.
                    let have = bytes.len() as u64;
                    let target = wanted.max(2 * have).min(size);
                    let more = reader.read_at(have, (target - have) as usize)?;
                    if more.is_empty() {
                        bail!("the file ends at {have} bytes, in the middle of its header");
                    }
                    bytes.extend(more);
                }
            }
        }
    }
}

//! The environment variables that all Hugging Face tools share.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::cache::Cache;
use crate::error::HubError;

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// Where the hub and its cache are.
#[derive(Clone)]
pub struct HubConfig {
    /// The cache folder: `HF_HUB_CACHE`, else `hub` in `HF_HOME`, else
    /// `huggingface/hub` in `XDG_CACHE_HOME` or `~/.cache`.
    pub cache: PathBuf,
    /// `HF_ENDPOINT`, without a slash at its end.
    pub endpoint: String,
    /// `HF_TOKEN`, or the content of the token file.
    pub token: Option<String>,
    /// `HF_HUB_OFFLINE`: never touch the network.
    pub offline: bool,
}

impl std::fmt::Debug for HubConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HubConfig")
            .field("cache", &self.cache)
            .field("endpoint", &self.endpoint)
            .field("token", &self.token.as_ref().map(|_| "(set)"))
            .field("offline", &self.offline)
            .finish()
    }
}

impl HubConfig {
    /// From the process's environment.
    pub fn from_env() -> Result<Self, HubError> {
        Self::from_lookup(|name| std::env::var_os(name))
    }

    /// From any source of variables; an empty value counts as unset.
    pub fn from_lookup(get: impl Fn(&str) -> Option<OsString>) -> Result<Self, HubError> {
        let get = |name: &str| get(name).filter(|v| !v.is_empty());
        let text = |name: &str| get(name).and_then(|v| v.into_string().ok());
        let user = get("HOME").or_else(|| get("USERPROFILE")).map(PathBuf::from);
        let home = get("HF_HOME").map(PathBuf::from).or_else(|| {
            let caches = get("XDG_CACHE_HOME").map(PathBuf::from);
            caches.or_else(|| Some(user?.join(".cache"))).map(|c| c.join("huggingface"))
        });
        let cache = get("HF_HUB_CACHE")
            .or_else(|| get("HUGGINGFACE_HUB_CACHE"))
            .map(PathBuf::from)
            .or_else(|| home.as_ref().map(|h| h.join("hub")))
            .ok_or(HubError::NoCacheFolder)?;
        let token_file = get("HF_TOKEN_PATH").map(PathBuf::from).or_else(|| home.map(|h| h.join("token")));
        let read_token = || std::fs::read_to_string(token_file?).ok();
        let token = text("HF_TOKEN")
            .or_else(|| text("HUGGING_FACE_HUB_TOKEN"))
            .or_else(read_token)
            .map(|t| t.trim().to_owned())
            .filter(|t| !t.is_empty() && t.bytes().all(|b| b.is_ascii_graphic()));
        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned());
        Ok(Self {
            cache,
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token,
            offline: text("HF_HUB_OFFLINE").is_some_and(|v| is_on(&v)),
        })
    }

    /// The cache.
    pub fn cache(&self) -> Cache {
        Cache::new(self.cache.clone())
    }
}

fn is_on(value: &str) -> bool {
    ["1", "on", "yes", "true"].iter().any(|on| on.eq_ignore_ascii_case(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(vars: &[(&str, &str)]) -> Result<HubConfig, HubError> {
        HubConfig::from_lookup(|name| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v)))
    }

    #[test]
    fn cache_folder() {
        for (vars, want) in [
            (&[("HOME", "/u")][..], "/u/.cache/huggingface/hub"),
            (&[("HOME", "/u"), ("XDG_CACHE_HOME", "/x")], "/x/huggingface/hub"),
            (&[("HOME", "/u"), ("XDG_CACHE_HOME", "/x"), ("HF_HOME", "/h")], "/h/hub"),
            (&[("HF_HOME", "/h"), ("HF_HUB_CACHE", "/c")], "/c"),
            (&[("HOME", "/u"), ("HF_HOME", "")], "/u/.cache/huggingface/hub"),
        ] {
            assert_eq!(config(vars).expect("known").cache, PathBuf::from(want));
        }
        assert!(matches!(config(&[]), Err(HubError::NoCacheFolder)));
    }

    #[test]
    fn token_offline_endpoint() {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join("token"), "hf_file\n").expect("written");
        let home = dir.path().to_str().expect("UTF-8");
        let c = config(&[("HF_HOME", home), ("HF_HUB_OFFLINE", "1")]).expect("valid");
        assert_eq!((c.token.as_deref(), c.offline), (Some("hf_file"), true));
        assert_eq!(c.endpoint, DEFAULT_ENDPOINT);
        assert!(!format!("{c:?}").contains("hf_file"));
        let c = config(&[("HF_HOME", home), ("HF_TOKEN", "hf_env"), ("HF_ENDPOINT", "http://m/")]).expect("valid");
        assert_eq!((c.token.as_deref(), c.endpoint.as_str()), (Some("hf_env"), "http://m"));
        assert!(!c.offline);
    }
}

//! Describes what was found of CUDA, for `sqlenv doctor`. Pure.

use policy::cuda::{Findings, FoundDevice, FoundLibrary};

/// A label and the fact.
type Fact = (&'static str, String);

/// Returns whether CUDA can be used, then the findings.
pub(super) fn facts(findings: Option<&Findings>) -> Vec<Fact> {
    let usable = compiled_in(findings).and_then(Findings::first_usable);
    let mut lines = vec![("cuda", usability(&usable))];
    if let Some(findings) = findings {
        let capability = findings.compiled_for.as_deref().unwrap_or("unknown");
        lines.push(("compiled", format!("for compute capability {capability}")));
        lines.push(("driver", driver(findings)));
        for (ordinal, device) in findings.devices.iter().enumerate() {
            lines.push(("device", format!("{ordinal}: {}", described(device))));
            // If no device is usable, the line above the devices gives the reason.
            if let (Ok(_), Err(reason)) = (&usable, findings.usable(ordinal)) {
                lines.push(("", format!("not usable: {reason}")));
            }
        }
        lines.extend(findings.libraries.iter().map(library));
    }
    lines
}

/// Checks that the device of this number can be used; the error is the reason and the remedy.
pub(super) fn usable(findings: Option<&Findings>, ordinal: usize) -> Result<(), String> {
    compiled_in(findings)?.usable(ordinal)
}

fn compiled_in(findings: Option<&Findings>) -> Result<&Findings, String> {
    findings.ok_or_else(|| "built without CUDA; `make cuda` builds one with it".to_owned())
}

fn usability(usable: &Result<usize, String>) -> String {
    match usable {
        Ok(ordinal) => format!("ready: device=auto is cuda:{ordinal}"),
        Err(reason) => format!("not usable, the policy runs on the CPU: {reason}"),
    }
}

fn driver(findings: &Findings) -> String {
    match findings.driver_version {
        Some((major, minor)) => format!("for CUDA {major}.{minor} and older"),
        None => "no driver answers".to_owned(),
    }
}

fn described(device: &FoundDevice) -> String {
    let (major, minor) = device.compute_capability;
    let total = gib(device.total_memory);
    let free = match device.free_memory {
        Some(free) => format!("{} free", gib(free)),
        None => "used by another process alone".to_owned(),
    };
    let name = &device.name;
    format!("{name}, compute capability {major}.{minor}, {total}, {free}")
}

fn library(found: &FoundLibrary) -> Fact {
    let need = if found.library.is_required() {
        "needed"
    } else {
        "not always needed"
    };
    let text = match &found.path {
        Ok(path) => match found.missing_functions.as_slice() {
            [] => path.display().to_string(),
            missing => format!("{}, which lacks {}", path.display(), missing.join(", ")),
        },
        Err(reason) => format!("{reason} ({need})"),
    };
    ("library", text)
}

fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

#[cfg(test)]
mod tests {
    use policy::cuda::Library;

    use super::*;

    fn found(library: Library) -> FoundLibrary {
        FoundLibrary {
            library,
            path: Ok(format!("/lib/{}", library.file()).into()),
            missing_functions: Vec::new(),
        }
    }

    fn with_h200() -> Findings {
        Findings {
            compiled_for: Some("90".to_owned()),
            libraries: Library::ALL.map(found).into(),
            driver_version: Some((13, 0)),
            devices: vec![FoundDevice {
                name: "NVIDIA H200".to_owned(),
                compute_capability: (9, 0),
                total_memory: 139 << 30,
                free_memory: Some(138 << 30),
            }],
            fault: None,
        }
    }

    fn lose(findings: &mut Findings, library: Library) {
        let reason = format!("{}: cannot open shared object file", library.file());
        findings.libraries[library as usize].path = Err(reason);
    }

    fn text(findings: &Findings) -> String {
        let lines = facts(Some(findings)).into_iter();
        lines
            .map(|(name, finding)| format!("{name}: {finding}\n"))
            .collect()
    }

    #[test]
    fn a_program_without_cuda_says_how_to_get_one() {
        let [(name, line)] = &facts(None)[..] else {
            panic!("more than a line");
        };
        assert_eq!(*name, "cuda");
        assert!(line.contains("make cuda") && line.contains("CPU"), "{line}");
    }

    #[test]
    fn a_gpu_is_described() {
        let text = text(&with_h200());
        for line in [
            "cuda: ready: device=auto is cuda:0\n",
            "compiled: for compute capability 90\n",
            "driver: for CUDA 13.0 and older\n",
            "device: 0: NVIDIA H200, compute capability 9.0, 139.0 GiB, 138.0 GiB free\n",
            "library: /lib/libnccl.so.2\n",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("not usable"), "{text}");
    }

    #[test]
    fn a_device_that_cannot_be_used_is_told_apart_from_one_that_can() {
        let mut findings = with_h200();
        let mut older = findings.devices[0].clone();
        older.compute_capability = (8, 0);
        findings.devices.insert(0, older);
        let text = text(&findings);
        assert!(
            text.contains("cuda: ready: device=auto is cuda:1\n"),
            "{text}"
        );
        assert_eq!(text.matches("not usable: ").count(), 1, "{text}");
        assert_eq!(usable(Some(&findings), 1), Ok(()));
        let reason = usable(Some(&findings), 0).unwrap_err();
        assert!(reason.contains("compute capability 8.0"), "{reason}");
    }

    #[test]
    fn json_holds_a_librarys_path_or_the_reason() {
        let mut findings = with_h200();
        lose(&mut findings, Library::Nccl);
        let json = serde_json::to_value(&findings.libraries).unwrap();
        assert_eq!(json[0]["path"], "/lib/libcuda.so.1");
        let nccl = &json[Library::Nccl as usize];
        assert_eq!(
            nccl["reason"],
            "libnccl.so.2: cannot open shared object file"
        );
        assert!(nccl["path"].is_null() && nccl["library"] == "nccl");
    }

    #[test]
    fn a_library_that_is_missing_is_named_with_its_need() {
        let mut findings = with_h200();
        lose(&mut findings, Library::Nccl);
        let line = "library: libnccl.so.2: cannot open shared object file (not always needed)\n";
        assert!(text(&findings).contains(line));
    }
}

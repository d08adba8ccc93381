//! Finds librallypoint: in RALLYPOINT_LIB_DIR, else where pkg-config says, else where the
//! linker looks by itself.
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=RALLYPOINT_LIB_DIR");
    if let Ok(folder) = std::env::var("RALLYPOINT_LIB_DIR") {
        println!("cargo:rustc-link-search=native={folder}");
    } else if let Ok(said) = Command::new("pkg-config")
        .args(["--variable=libdir", "rallypoint"])
        .output()
    {
        let folder = String::from_utf8_lossy(&said.stdout);
        if said.status.success() && !folder.trim().is_empty() {
            println!("cargo:rustc-link-search=native={}", folder.trim());
        }
    }
    println!("cargo:rustc-link-lib=dylib=rallypoint");
}

// Command release writes the archives of a release, which are the same bytes on every machine.
// `make release` runs it. Compression is Go's own, whose version .go-version pins. All times are
// SOURCE_DATE_EPOCH and all owners root.
//
//	release tar FOLDER FILE.tar.gz         the folder, under its own name
//	release pack FILE.whl|FILE.tar.gz ...  compresses again what another tool has written
//	release gzip FILE...                   compresses each file to FILE.gz in its place
//	release image FILE.tar MACHINE=ROOT... an OCI image layout, in a tar
//	release sbom FILE ARTEFACT[=BINARY]... an SPDX document of what the artefacts contain
package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

var errUsage = errors.New("usage: release tar|pack|gzip|image|sbom ...; see the package's comment")

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 2 {
		return errUsage
	}
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH is not a number of seconds: %w", err)
	}
	at := time.Unix(seconds, 0).UTC()
	switch command, args := args[0], args[1:]; command {
	case "tar":
		if len(args) != 2 {
			return errUsage
		}
		var all bytes.Buffer
		if err := writeTar(&all, args[0], filepath.Base(args[0]), at); err != nil {
			return err
		}
		return os.WriteFile(args[1], compressed(all.Bytes()), 0o644)
	case "pack":
		for _, name := range args {
			if err := packAgain(name); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		return nil
	case "gzip":
		for _, name := range args {
			text, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			if err := os.WriteFile(name+".gz", compressed(text), 0o644); err != nil {
				return err
			}
			if err := os.Remove(name); err != nil {
				return err
			}
		}
		return nil
	case "image":
		return writeImage(args[0], args[1:], at)
	case "sbom":
		return writeSBOM(args[0], args[1:], at)
	}
	return errUsage
}

// owners are the files and folders of an archive that do not belong to root, by their
// path in it: the folder of an image's volume.
var owners = map[string]int{"data": nobody}

// writeTar writes what is in the folder, in the order of the paths, under a name; "" puts
// it at the archive's root.
func writeTar(w io.Writer, folder, under string, at time.Time) error {
	archive := tar.NewWriter(w)
	err := filepath.WalkDir(folder, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(folder, name)
		if err != nil {
			return err
		}
		inside := path.Join(under, filepath.ToSlash(relative))
		if inside == "." {
			return nil
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		owner := owners[inside]
		header := tar.Header{Name: inside, Mode: 0o644, ModTime: at, Uid: owner, Gid: owner, Format: tar.FormatUSTAR}
		switch {
		case entry.IsDir():
			header.Typeflag, header.Name, header.Mode = tar.TypeDir, inside+"/", 0o755
			return archive.WriteHeader(&header)
		case !entry.Type().IsRegular():
			return fmt.Errorf("%s is neither a file nor a folder", name)
		case info.Mode()&0o100 != 0:
			header.Mode = 0o755
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		header.Typeflag, header.Size = tar.TypeReg, int64(len(text))
		if err := archive.WriteHeader(&header); err != nil {
			return err
		}
		_, err = archive.Write(text)
		return err
	})
	if err != nil {
		return err
	}
	return archive.Close()
}

// compressed is the text in gzip's format, without a name or a time.
func compressed(text []byte) []byte {
	var all bytes.Buffer
	w, err := gzip.NewWriterLevel(&all, gzip.BestCompression)
	if err != nil {
		panic(err) // the level is one
	}
	_, _ = w.Write(text) // a buffer takes all
	_ = w.Close()
	return all.Bytes()
}

// packAgain compresses a wheel or a tar.gz again: what the zlib of Python writes differs
// from machine to machine.
func packAgain(name string) error {
	old, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	if strings.HasSuffix(name, ".gz") {
		r, err := gzip.NewReader(bytes.NewReader(old))
		if err != nil {
			return err
		}
		text, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		return os.WriteFile(name, compressed(text), 0o644)
	}
	r, err := zip.NewReader(bytes.NewReader(old), int64(len(old)))
	if err != nil {
		return err
	}
	var all bytes.Buffer
	w := zip.NewWriter(&all)
	w.RegisterCompressor(zip.Deflate, func(out io.Writer) (io.WriteCloser, error) {
		return flate.NewWriter(out, flate.BestCompression)
	})
	for _, file := range r.File {
		entry, err := w.CreateHeader(&zip.FileHeader{Name: file.Name, Method: zip.Deflate, Modified: file.Modified,
			CreatorVersion: file.CreatorVersion, ExternalAttrs: file.ExternalAttrs})
		if err != nil {
			return err
		}
		text, err := file.Open()
		if err != nil {
			return err
		}
		if _, err := io.Copy(entry, text); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(name, all.Bytes(), 0o644)
}

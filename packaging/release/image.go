package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"
)

// nobody is the image's user: of no system, so that it owns nothing of a host.
const nobody = 65532

const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

// A layout is a folder of blobs by their digests, as the OCI image specification has it,
// in a tar.
type layout struct {
	tar *tar.Writer
	at  time.Time
}

func (l *layout) write(name string, text []byte) error {
	header := tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(text)), ModTime: l.at, Format: tar.FormatUSTAR}
	if err := l.tar.WriteHeader(&header); err != nil {
		return err
	}
	_, err := l.tar.Write(text)
	return err
}

func (l *layout) blob(mediaType string, text []byte) (descriptor, error) {
	digest := sum(text)
	return descriptor{MediaType: mediaType, Digest: "sha256:" + digest, Size: len(text)}, l.write("blobs/sha256/"+digest, text)
}

func (l *layout) document(mediaType string, value any) (descriptor, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return descriptor{}, err
	}
	return l.blob(mediaType, text)
}

func sum(text []byte) string {
	digest := sha256.Sum256(text)
	return hex.EncodeToString(digest[:])
}

// writeImage writes an image of one layer for each of the machines. It starts the same command as
// examples/container/Containerfile.
func writeImage(name string, roots []string, at time.Time) error {
	version := os.Getenv("VERSION")
	var all bytes.Buffer
	l := layout{tar.NewWriter(&all), at}
	about := map[string]string{
		"org.opencontainers.image.created":  at.Format(time.RFC3339),
		"org.opencontainers.image.licenses": "Apache-2.0",
		"org.opencontainers.image.title":    "rallypoint",
		"org.opencontainers.image.version":  version,
	}
	var manifests []descriptor
	for _, root := range roots {
		machine, folder, found := strings.Cut(root, "=")
		if !found {
			return errUsage
		}
		var files bytes.Buffer
		if err := writeTar(&files, folder, "", at); err != nil {
			return err
		}
		layer, err := l.blob(typeLayer, compressed(files.Bytes()))
		if err != nil {
			return err
		}
		config, err := l.document(typeConfig, map[string]any{
			"created": about["org.opencontainers.image.created"], "architecture": machine, "os": "linux",
			"config": map[string]any{
				"User":         fmt.Sprintf("%d:%d", nobody, nobody),
				"ExposedPorts": map[string]any{"29400/tcp": struct{}{}},
				"Env":          []string{"PATH=/"},
				"Entrypoint":   []string{"/rallypoint", "serve", "--listen", "0.0.0.0:29400", "--data-dir", "/data/control"},
				"Volumes":      map[string]any{"/data": struct{}{}},
				"Labels":       about,
			},
			"rootfs":  map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + sum(files.Bytes())}},
			"history": []any{map[string]any{"created": about["org.opencontainers.image.created"], "created_by": "make release"}},
		})
		if err != nil {
			return err
		}
		manifest, err := l.document(typeManifest, map[string]any{
			"schemaVersion": 2, "mediaType": typeManifest, "config": config, "layers": []descriptor{layer}, "annotations": about,
		})
		if err != nil {
			return err
		}
		manifest.Platform = &platform{machine, "linux"}
		manifests = append(manifests, manifest)
	}
	index, err := l.document(typeIndex, map[string]any{
		"schemaVersion": 2, "mediaType": typeIndex, "manifests": manifests, "annotations": about,
	})
	if err != nil {
		return err
	}
	index.Annotations = map[string]string{"org.opencontainers.image.ref.name": version}
	text, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": typeIndex, "manifests": []descriptor{index}})
	if err != nil {
		return err
	}
	if err := l.write("index.json", text); err != nil {
		return err
	}
	if err := l.write("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return err
	}
	if err := l.tar.Close(); err != nil {
		return err
	}
	return os.WriteFile(name, all.Bytes(), 0o644)
}

package backend

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
)

// The names of the backends, as torchrun and rallypoint run know them. NameAny takes
// every endpoint.
const (
	nameAny    = "rallypoint"
	nameFile   = "rallypoint-file"
	nameEtcd   = "rallypoint-etcd"
	NameStatic = "rallypoint-static"
)

// aliases are torch's names of the same backends.
var aliases = map[string]string{"c10d": nameAny, "etcd": nameEtcd, "etcd-v2": nameEtcd, "static": NameStatic}

// Canonical returns our own name of a backend, NameAny for "". Another name than ours
// and torch's is ErrInvalid.
func Canonical(name string) (string, error) {
	if name == "" {
		return nameAny, nil
	}
	if own, ok := aliases[name]; ok {
		return own, nil
	}
	if slices.Contains([]string{nameAny, nameFile, nameEtcd, NameStatic}, name) {
		return name, nil
	}
	return "", rendezvous.Errorf(rendezvous.CodeInvalid, "unknown backend %q; choose one of rallypoint, rallypoint-file, rallypoint-etcd, "+
		"rallypoint-static, etcd, static and c10d. A backend that is registered with torch needs torch's agent: torchrun --rdzv-backend=%s, or torch's own elastic_launch (docs/deviations.md)", name, name)
}

// Resolve returns the endpoint and the options of a node, as Open and Params.SetOptions
// take them, from what torchrun's --rdzv-backend, --rdzv-endpoint and --rdzv-conf give.
// rallypoint-file also takes a plain path, rallypoint-etcd host[:port] or a list of them,
// rallypoint-static HOST:PORT of node 0. store_type=file with a path is c10d's way to
// say rallypoint-file; a path that is no directory is c10d's file, beside which Resolve makes a
// directory. rank and timeout of a static node are torch's for node_rank and
// join_timeout. An endpoint of another backend is ErrInvalid.
//
// It leaves the map options alone.
func Resolve(name, endpoint string, options map[string]string) (string, map[string]string, error) {
	own, err := Canonical(name)
	if err != nil {
		return "", nil, err
	}
	text := strings.TrimSpace(endpoint)
	beside := false
	if own == nameAny && strings.EqualFold(options["store_type"], "file") && (strings.HasPrefix(text, "/") || scheme(text) == schemeFile) {
		own, options = nameFile, maps.Clone(options)
		delete(options, "store_type")
		beside = true
	}
	switch own {
	case nameFile:
		if text, err = resolveFile(text); err == nil && beside {
			text, err = besideFile(text)
		}
	case nameEtcd:
		text, err = resolveEtcd(name, text)
	case NameStatic:
		text, err = resolveStatic(text)
	}
	if err != nil {
		return "", nil, err
	}
	if scheme(text) == SchemeStatic {
		options = staticOptions(options)
	}
	return text, options, nil
}

func resolveFile(text string) (string, error) {
	switch {
	case strings.HasPrefix(text, "/"):
		return directory(text).shown(), nil
	case scheme(text) != schemeFile:
		return "", rendezvous.Errorf(rendezvous.CodeInvalid,
			"the endpoint %q is not one of %s: write file:///DIRECTORY, or the path of a directory that all nodes share", params.QuotableEndpoint(text), nameFile)
	}
	return text, nil
}

// besideFile returns the endpoint of the directory for torch's file: the path with a suffix,
// unless it is a directory itself.
func besideFile(endpoint string) (string, error) {
	file, err := directoryOf(endpoint)
	if err != nil {
		return "", err
	}
	path := string(file)
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return endpoint, nil
	}
	dir := path + ".rallypoint"
	err = os.Mkdir(dir, 0o700)
	if errors.Is(err, fs.ErrExist) {
		err = ownDirectory(dir)
	}
	if err != nil {
		return "", rendezvous.Errorf(rendezvous.CodeInvalid, "store_type=file: the nodes cannot meet beside the file %s: %v; "+
			"all nodes have to share its folder and to write there, or give the endpoint file:///DIRECTORY", path, err)
	}
	return directory(dir).shown(), nil
}

// ownDirectory refuses a directory if another user may write to its parent and can have made it.
func ownDirectory(dir string) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return &fs.PathError{Op: "lstat", Path: dir, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Mode&0o022 != 0 || st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s is not a directory that only this user can write to", dir)
	}
	return nil
}

func resolveEtcd(name, text string) (string, error) {
	switch scheme(text) {
	case schemeEtcd, schemeEtcds:
		return text, nil
	case "":
		if text == "" {
			text = "localhost" // the reference's host where none is given
		}
		return schemeEtcd + "://" + text, nil
	}
	return "", rendezvous.Errorf(rendezvous.CodeInvalid,
		"the endpoint %q is not one of %s: write etcd://HOST[:PORT][,HOST[:PORT]...], or etcds:// with TLS", params.QuotableEndpoint(text), name)
}

func resolveStatic(text string) (string, error) {
	switch scheme(text) {
	case SchemeStatic:
		return text, nil
	case "":
		if text == "" {
			return "", errNoStaticEndpoint
		}
		return staticScheme + text, nil
	}
	return "", rendezvous.Errorf(rendezvous.CodeInvalid,
		"the endpoint %q is not one of %s: write HOST:PORT of node 0", params.QuotableEndpoint(text), NameStatic)
}

// staticOptions adds node_rank and join_timeout by torch's names of them.
func staticOptions(options map[string]string) map[string]string {
	all := maps.Clone(options)
	for torch, own := range map[string]string{"rank": "node_rank", "timeout": "join_timeout"} {
		value, given := options[torch]
		if _, ours := options[own]; ours || !given {
			continue
		}
		if n, err := strconv.ParseFloat(value, 64); torch == "timeout" && (value == "" || err == nil && n == 0) {
			continue // torch's way to say none
		}
		all[own] = value
	}
	return all
}

package process

import (
	_ "embed"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// siteScript is the sitecustomize of workers that start cold, and of a template: see there.
//
//go:embed sitecustomize.py
var siteScript string

// Tasks of sitecustomize.py: envStage names one. A worker is observed, cold or forked.
const (
	envStage     = "RALLYPOINT_TEMPLATE"
	stageObserve = "observe"
)

// NewSite makes a folder, in one that only this user may enter, that has an interpreter of Python
// count the steps of torch's optimizers: see Launch.Site. The caller removes the outer folder,
// also after an error.
func NewSite(in string) (string, error) {
	folder, err := os.MkdirTemp(in, "rallypoint-site-")
	if err == nil {
		err = writeSite(folder)
	}
	if err != nil {
		return "", err
	}
	return folder, nil
}

func writeSite(folder string) error {
	return os.WriteFile(filepath.Join(folder, "sitecustomize.py"), []byte(siteScript), 0o600)
}

// observed is the environment of a worker that starts cold. It has the site, unless the
// interpreter's options make it ignore that.
func (l *Launch) observed() []string {
	options, _, ok := interpreterOptions(l.Argv)
	isolated := func(option string) bool { return option[:1] == "-" && strings.ContainsAny(option, "EIS") }
	if l.Site == "" || !ok || slices.ContainsFunc(options, isolated) {
		return l.Env
	}
	return withSite(l.Env, l.Site, stageObserve)
}

// withSite puts a folder first on PYTHONPATH, and names the task of its sitecustomize.
func withSite(env []string, folder, stage string) []string {
	path := folder
	if given, _ := LookupEnv(env, "PYTHONPATH"); given != "" {
		path += ":" + given
	}
	env = slices.DeleteFunc(slices.Clone(env), func(entry string) bool { return strings.HasPrefix(entry, "PYTHONPATH=") })
	return append(env, "PYTHONPATH="+path, envStage+"="+stage)
}

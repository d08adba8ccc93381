package logs

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"rallypoint/internal/testkit"
)

// TestLeftTrees: an agent removes what those have left that were killed, but no folder with content, none of
// an agent that lives, and none of torch.
func TestLeftTrees(t *testing.T) {
	temp := t.TempDir()
	begin := func() *Tree {
		return testkit.Must(NewTree(&Spec{TempDir: temp}, "run", slog.New(slog.DiscardHandler)))(t)
	}
	killed := func(tree *Tree) *Tree {
		testkit.Check(t, tree.lock.Close())
		return tree
	}
	live, ended, filled, empty := begin(), begin(), begin(), begin()
	defer live.Close()
	for _, tree := range []*Tree{ended, filled} {
		testkit.WriteFile(t, filepath.Join(tree.job, "stdout.log"), []byte("x"))
	}
	testkit.WriteFile(t, filepath.Join(empty.job, "stdout.log"), nil)
	ended.Close()
	killed(filled)
	killed(empty)
	torch := filepath.Join(temp, "torchelastic_abcdefgh")
	testkit.Check(t, os.Mkdir(torch, 0o700))

	next := begin()
	have := testkit.Must(filepath.Glob(temp + "/*"))(t)
	want := []string{live.Base, ended.Base, filled.Base, torch, next.Base}
	slices.Sort(want)
	if !slices.Equal(have, want) {
		t.Errorf("there are %q, want %q", have, want)
	}
	for tree, marked := range map[*Tree]bool{live: true, ended: false, filled: false, next: true} {
		if _, err := os.Lstat(tree.Base + "/" + lockName); (err == nil) != marked {
			t.Errorf("%s: %v", tree.Base, err)
		}
	}
	next.Close()
	if _, err := os.Lstat(next.Base); !os.IsNotExist(err) {
		t.Error(err)
	}
}

package logs

import "testing"

func TestParseStreamSpec(t *testing.T) {
	for text, want := range map[string][]stdSet{
		"0":              {0, 0, 0},
		"3":              {3, 3, 3},
		"0:1":            {1, 0, 0},
		"0:1,1:2":        {1, 2, 0},
		"2:3,0:0":        {0, 0, 3},
		"10:2,0:1":       {1, 0, 0},
		"1:1,1:2":        {0, 2, 0},
		"00:1":           {1, 0, 0},
		"0:1,10:2,100:3": {1, 0, 0},
	} {
		spec, err := ParseStreamSpec(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		for local, std := range want {
			if got := spec.forRank(local); got != std {
				t.Errorf("%q: rank %d has %d, expected %d", text, local, got, std)
			}
		}
	}
	if spec, _ := ParseStreamSpec("10:2,0:1"); spec.forRank(10) != stdErr || spec.MaxRank() != 10 {
		t.Error("rank 10 cannot be written (W17)")
	}
	for _, text := range []string{"", "4", "11", "a", "-1", "0:1,", ",0:1", "0:4", "0:1,1", "1,0:1", ":1", "0:", "-1:1", "0:1:1"} {
		if _, err := ParseStreamSpec(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

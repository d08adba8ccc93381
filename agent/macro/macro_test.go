package macro

import "testing"

func TestSubstitute(t *testing.T) {
	values := map[string]string{"local_rank": "3", "role_name": "r"}
	for text, want := range map[string]string{
		"":                          "",
		"plain":                     "plain",
		"$local_rank":               "3",
		"${local_rank}x":            "3x",
		"a$$b":                      "a$b",
		"$$local_rank":              "$local_rank",
		"$HOME ${HOME}":             "$HOME ${HOME}",
		"$":                         "$",
		"${":                        "${",
		"${local_rank":              "${local_rank",
		"$local_ranks":              "$local_ranks",
		"$LOCAL_RANK":               "$LOCAL_RANK",
		"${role_name}${local_rank}": "r3",
		"ü$local_rankü":             "ü3ü",
		"$1 $-":                     "$1 $-",
	} {
		if got := Substitute(text, values); got != want {
			t.Errorf("%q gives %q, expected %q", text, got, want)
		}
	}
}

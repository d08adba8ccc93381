// Package yamlfile reads small files of settings: one YAML mapping of keys to plain
// values or lists of them.
package yamlfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"go.yaml.in/yaml/v3"
)

// Read returns the keys of a file with their values: bool, int64, float64, string or a
// []any of these. Everything else that YAML can say is an error that names the line: a
// second document, a key twice, a value that is missing or a mapping, aliases and tags.
func Read(text []byte) (map[string]any, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var document yaml.Node
	switch err := decoder.Decode(&document); {
	case errors.Is(err, io.EOF):
		return nil, nil // nothing but comments
	case err != nil:
		return nil, err
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is a second document in it")
	}
	root := document.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return nil, nil
	}
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("line %d: expected lines of KEY: VALUE", root.Line)
	}
	settings := make(map[string]any, len(root.Content)/2)
	for i := 0; i < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		if key.Kind != yaml.ScalarNode {
			return nil, fmt.Errorf("line %d: a key is no text", key.Line)
		}
		if _, twice := settings[key.Value]; twice {
			return nil, fmt.Errorf("line %d: the key %q appears twice", key.Line, key.Value)
		}
		read, err := plain(value, true)
		if err != nil {
			return nil, fmt.Errorf("line %d: %q %w", value.Line, key.Value, err)
		}
		settings[key.Value] = read
	}
	return settings, nil
}

func plain(node *yaml.Node, list bool) (any, error) {
	if node.Kind == yaml.SequenceNode && list {
		values := make([]any, len(node.Content))
		for i, item := range node.Content {
			value, err := plain(item, false)
			if err != nil {
				return nil, err
			}
			values[i] = value
		}
		return values, nil
	}
	if node.Kind != yaml.ScalarNode {
		return nil, errors.New("is neither a value nor a list of values")
	}
	var err error
	switch node.Tag {
	case "!!str":
		return node.Value, nil
	case "!!bool":
		var value bool
		err = node.Decode(&value)
		return value, err
	case "!!int":
		var value int64
		if err = node.Decode(&value); err != nil {
			return nil, fmt.Errorf("is %s, which is no number of 64 bits", node.Value)
		}
		return value, nil
	case "!!float":
		var value float64
		err = node.Decode(&value)
		return value, err
	case "!!null":
		return nil, errors.New("has no value")
	}
	return nil, fmt.Errorf("is of the type %s, expected text, a number, true or false", node.Tag)
}

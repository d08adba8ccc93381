package store

import (
	"bytes"
	"errors"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// model is the Engine written the naive way: plain maps, and a list of waits that
// is walked for each write.
type model struct {
	keys   map[string]string
	queues map[string][]string
	waits  []*modelWait
	woken  []int
}

type modelWait struct {
	id      int
	missing []string
}

func (m *model) present(key string) bool {
	_, ok := m.keys[key]
	return ok || len(m.queues[key]) > 0
}

func (m *model) set(key, value string) {
	m.keys[key] = value
	m.count(key, math.MaxInt)
}

// count counts a write of key for the waits in order until so many are woken.
func (m *model) count(key string, most int) {
	var left []*modelWait
	for _, w := range m.waits {
		if most > 0 {
			w.missing = slices.DeleteFunc(w.missing, func(k string) bool { return k == key })
			if len(w.missing) == 0 {
				m.woken = append(m.woken, w.id)
				most--
				continue
			}
		}
		left = append(left, w)
	}
	m.waits = left
}

func (m *model) add(key string, delta int64) (int64, bool) {
	n := int64(0)
	if v, ok := m.keys[key]; ok {
		v = strings.TrimLeft(v, " \t\n\v\f\r")
		end := 0
		for end < len(v) && (v[end] >= '0' && v[end] <= '9' || end == 0 && (v[0] == '-' || v[0] == '+')) {
			end++
		}
		var err error
		if n, err = strconv.ParseInt(v[:end], 10, 64); err != nil {
			return 0, false
		}
	}
	m.keys[key] = strconv.FormatInt(n+delta, 10)
	return n + delta, true
}

func (m *model) wait(id int, keys []string) bool {
	w := &modelWait{id: id}
	for _, key := range keys {
		if !m.present(key) {
			w.missing = append(w.missing, key)
		}
	}
	if len(w.missing) > 0 {
		m.waits = append(m.waits, w)
	}
	return len(w.missing) == 0
}

func (m *model) bytes() (n int64) {
	for key, value := range m.keys {
		n += int64(len(key) + len(value))
	}
	for name, items := range m.queues {
		if len(items) > 0 {
			n += int64(len(name))
		}
		for _, item := range items {
			n += int64(len(item))
		}
	}
	return n
}

// pair is an engine and its model, which get the same calls.
type pair struct {
	e       *Engine
	m       *model
	woken   []int
	waiters map[int]*Waiter
	ids     int
}

func (p *pair) waiter() (int, *Waiter) {
	p.ids++
	id := p.ids
	w := &Waiter{}
	w.Wake = func() {
		p.woken = append(p.woken, id)
		delete(p.waiters, id)
	}
	return id, w
}

var (
	someKey   = rapid.SampledFrom([]string{"", "a", "b", "c", "dd"})
	someValue = rapid.OneOf(
		rapid.SampledFrom([]string{"", "5", "-3", " 12abc", "9223372036854775807", "text", "+"}),
		rapid.StringN(0, 100, -1))
)

// TestModel compares the engine with its model over random calls.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := &pair{e: newEngine(), m: &model{keys: map[string]string{}, queues: map[string][]string{}}, waiters: map[int]*Waiter{}}
		same := func(what string, engine, model any) {
			if engine != model {
				t.Fatalf("%s: engine %v, model %v", what, engine, model)
			}
		}
		actions := p.actions(same)
		actions[""] = func(t *rapid.T) {
			if !slices.Equal(p.woken, p.m.woken) {
				t.Fatalf("woken: engine %v, model %v", p.woken, p.m.woken)
			}
			same("bytes", p.e.Bytes(), p.m.bytes())
			same("waiters", p.e.NumWaiters(), len(p.m.waits))
			if len(p.m.waits) == 0 {
				same("bytes of waits", p.e.WaitBytes(), int64(0))
			}
			if keys := slices.Sorted(maps.Keys(p.m.keys)); !slices.Equal(p.e.Keys(), keys) {
				t.Fatalf("keys: engine %q, model %q", p.e.Keys(), keys)
			}
			for key, v := range p.e.All() {
				same("value of "+key, string(v), p.m.keys[key])
			}
			items := 0
			for name, list := range p.e.Queues() {
				items += len(list)
				same("queue "+name, string(bytes.Join(list, []byte("|"))), strings.Join(p.m.queues[name], "|"))
			}
			same("items", p.e.items, items)
			for _, list := range p.e.waiting {
				if list.head == nil {
					t.Fatal("an empty list of waiters is kept")
				}
			}
		}
		t.Repeat(actions)
	})
}

// comparing tells of a difference between an engine and its model.
type comparing func(what string, engine, model any)

// actions are what the engine and the model do alike, by name.
func (p *pair) actions(same comparing) map[string]func(*rapid.T) {
	all := p.valueActions(same)
	maps.Copy(all, p.queueActions(same))
	maps.Copy(all, p.waitActions(same))
	return all
}

func (p *pair) valueActions(same comparing) map[string]func(*rapid.T) {
	e, m := p.e, p.m
	return map[string]func(*rapid.T){
		"set": func(t *rapid.T) {
			key, v := someKey.Draw(t, "key"), someValue.Draw(t, "value")
			same("set", e.Set(key, []byte(v)), nil)
			m.set(key, v)
		},
		"append": func(t *rapid.T) {
			key, v := someKey.Draw(t, "key"), someValue.Draw(t, "value")
			same("append", e.Append(key, []byte(v)), nil)
			m.set(key, m.keys[key]+v)
		},
		"add": func(t *rapid.T) {
			key, delta := someKey.Draw(t, "key"), rapid.Int64().Draw(t, "delta")
			n, err := e.Add(key, delta)
			want, ok := m.add(key, delta)
			same("sum", n, want)
			same("error", errors.Is(err, ErrNotNumber), !ok)
			if ok {
				m.count(key, math.MaxInt)
			}
		},
		"cas": func(t *rapid.T) {
			key, expected, desired := someKey.Draw(t, "key"), someValue.Draw(t, "expected"), someValue.Draw(t, "desired")
			current, ok := m.keys[key]
			want := current
			switch {
			case !ok && expected != "":
				want = expected
			case current == expected:
				want = desired
				m.set(key, desired)
			}
			got, _ := e.CompareSet(key, []byte(expected), []byte(desired))
			same("cas", string(got), want)
		},
		"delete": func(t *rapid.T) {
			key := someKey.Draw(t, "key")
			_, existed := m.keys[key]
			delete(m.keys, key)
			same("delete", e.Delete(key), existed)
		},
	}
}

func (p *pair) queueActions(same comparing) map[string]func(*rapid.T) {
	e, m := p.e, p.m
	return map[string]func(*rapid.T){
		"push": func(t *rapid.T) {
			key, v := someKey.Draw(t, "key"), someValue.Draw(t, "value")
			same("push", e.QueuePush(key, []byte(v)), nil)
			m.queues[key] = append(m.queues[key], v)
			m.count(key, 1)
		},
		"pop": func(t *rapid.T) {
			key := someKey.Draw(t, "key")
			item, n := e.QueuePop(key)
			same("length", n, len(m.queues[key]))
			if n > 0 {
				same("item", string(item), m.queues[key][0])
				m.queues[key] = m.queues[key][1:]
			}
			same("rest", e.QueueLen(key), len(m.queues[key]))
		},
	}
}

func (p *pair) waitActions(same comparing) map[string]func(*rapid.T) {
	e, m := p.e, p.m
	return map[string]func(*rapid.T){
		"wait": func(t *rapid.T) {
			keys := rapid.SliceOfN(someKey, 0, 4).Draw(t, "keys")
			id, w := p.waiter()
			same("check", e.Check(keys), m.wait(id, keys))
			if !e.Wait(keys, w) {
				p.waiters[id] = w
			}
		},
		"barrier": func(t *rapid.T) {
			key, size := someKey.Draw(t, "key"), rapid.Int64Range(-1, 4).Draw(t, "size")
			id, w := p.waiter()
			done, err := e.Barrier(key, size, w)
			n, ok := m.add(key, 1)
			same("error", errors.Is(err, ErrNotNumber), !ok)
			same("done", done, ok && n >= size)
			if done {
				m.count(key, math.MaxInt)
			} else if ok {
				m.waits = append(m.waits, &modelWait{id: id, missing: []string{key}})
				p.waiters[id] = w
			}
		},
		"cancel": func(t *rapid.T) {
			if len(p.waiters) == 0 {
				t.Skip("no call waits")
			}
			id := rapid.SampledFrom(slices.Sorted(maps.Keys(p.waiters))).Draw(t, "waiter")
			e.Cancel(p.waiters[id])
			delete(p.waiters, id)
			m.waits = slices.DeleteFunc(m.waits, func(w *modelWait) bool { return w.id == id })
		},
	}
}

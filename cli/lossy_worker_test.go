package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"rallypoint/agent/progress"
	"rallypoint/tcpstore"
)

// asLossyWorker makes this test binary a worker of TestNetworkLoss. It names the folder in
// which the job keeps its state.
const asLossyWorker = "RALLYPOINT_TEST_AS_LOSSY_WORKER"

func init() {
	if dir := os.Getenv(asLossyWorker); dir != "" && os.Getenv(asCommand)+os.Getenv(asGet) == "" {
		if err := playLossyWorker(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// lossyWorker trains in lockstep with the others: in each step it reads from the round's store
// what rank 0 and its neighbour have written there.
type lossyWorker struct {
	dir         string
	say         *os.File
	store       *tcpstore.Client
	rank, world int
	steps       *stepRecord
}

func playLossyWorker(dir string) error {
	say, err := os.OpenFile(os.Getenv("SAY"), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	number := func(variable string) int {
		n, err := strconv.Atoi(os.Getenv(variable))
		if err != nil {
			panic(variable + ": " + err.Error())
		}
		return n
	}
	w := &lossyWorker{dir: dir, say: say, rank: number("RANK"), world: number("WORLD_SIZE")}
	if w.steps, err = openStepRecord(); err != nil {
		return err
	}
	address := net.JoinHostPort(os.Getenv("MASTER_ADDR"), os.Getenv("MASTER_PORT"))
	w.tell("start", os.Getenv("GROUP_WORLD_SIZE"), w.world, w.rank, os.Getenv("NODE"), address, os.Getpid())
	if w.store, err = tcpstore.Dial(context.Background(), address, tcpstore.ClientOptions{}); err == nil {
		err = w.train()
	}
	if err == nil {
		return nil
	}
	w.tell("trouble", strconv.Quote(err.Error()))
	select {} // the agents' failures are the test's business: this worker makes none of its own
}

// tell says something to the test: one write of few bytes, which no other worker's cuts.
func (l *lossyWorker) tell(what string, of ...any) {
	line := fmt.Sprintln(append([]any{what, time.Now().UnixNano(), os.Getenv("RALLYPOINT_ROUND")}, of...)...)
	_, _ = l.say.WriteString(line)
}

// train goes through steps until rank 0 says that there are no more.
func (l *lossyWorker) train() error {
	first, err := l.first()
	if err != nil {
		return err
	}
	for step := first; ; step++ {
		last, err := l.exchange(step)
		if err != nil || last {
			return err
		}
		if l.rank == 0 {
			if err := writeWhole(filepath.Join(l.dir, "step"), strconv.Itoa(step)); err != nil {
				return err
			}
		}
		if l.steps.report(step) {
			d, err := readDirective()
			if err != nil {
				return err
			}
			l.tell("directive", l.rank, d.ID, d.Kind, step)
			l.steps.saved()
			for d.Kind != "save" {
				time.Sleep(10 * time.Millisecond) // until the agent ends this worker
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// first is the step with which the round begins: the one after the last that is done, as rank
// 0 has read it.
func (l *lossyWorker) first() (step int, err error) {
	ctx := context.Background()
	if l.rank != 0 {
		text, err := l.store.Get(ctx, "first")
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(string(text))
	}
	text, err := os.ReadFile(filepath.Join(l.dir, "step"))
	if err == nil {
		if step, err = strconv.Atoi(string(text)); err != nil {
			return 0, err
		}
		step++
	}
	return step, l.store.Set(ctx, "first", []byte(strconv.Itoa(step)))
}

// exchange writes this worker's value of a step and reads two others'.
func (l *lossyWorker) exchange(step int) (last bool, err error) {
	ctx := context.Background()
	done := byte('0')
	if l.rank == 0 {
		if _, err := os.Stat(filepath.Join(l.dir, "finish")); err == nil {
			done = '1'
		}
	}
	if err := l.store.Set(ctx, stepKey(step, l.rank), append([]byte{done}, stepValue(step, l.rank)...)); err != nil {
		return false, err
	}
	neighbour := (l.rank + 1) % l.world
	keys := []string{stepKey(step, 0), stepKey(step, neighbour)}
	if err := l.store.Wait(ctx, keys); err != nil {
		return false, err
	}
	for i, rank := range []int{0, neighbour} {
		got, err := l.store.Get(ctx, keys[i])
		if err != nil {
			return false, err
		}
		if want := stepValue(step, rank); len(got) == 0 || !bytes.Equal(got[1:], want) {
			l.tell("wrong", keys[i], len(got), len(want))
		}
		if rank == 0 {
			last = got[0] == '1'
		}
	}
	old := step - l.world - 2 // each waits for its neighbour: none is behind by more than the ring is long
	if old >= 0 {
		_, err = l.store.Delete(ctx, stepKey(old, l.rank))
	}
	return last, err
}

func stepKey(step, rank int) string { return fmt.Sprintf("step %d of %d", step, rank) }

// smallValues leaves the large values out.
const smallValues = "RALLYPOINT_TEST_SMALL_VALUES"

// stepValue is what a rank writes in a step: mostly little, now and then 64 or 200 KiB.
func stepValue(step, rank int) []byte {
	size := 1 << 10
	kind := (step + rank) % 16
	if os.Getenv(smallValues) != "" {
		kind = 0
	}
	switch kind {
	case 3, 9:
		size = 64 << 10
	case 6:
		size = 200 << 10
	}
	random := rand.New(rand.NewPCG(uint64(step), uint64(rank)))
	value := make([]byte, size)
	for i := range value {
		value[i] = byte(random.Uint32())
	}
	return value
}

func writeWhole(path, text string) error {
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// stepDirective is what the directive file holds, as far as the test asks.
type stepDirective struct{ ID, Kind string }

func readDirective() (d stepDirective, err error) {
	text, err := os.ReadFile(os.Getenv(progress.EnvDirective))
	if err == nil {
		err = json.Unmarshal(text, &d)
	}
	return d, err
}

// stepRecord is a worker's side of its progress record, written from docs/progress-record.md.
type stepRecord struct {
	step         *atomic.Int64
	asked        *atomic.Uint64
	answer       *atomic.Uint64
	reach        *atomic.Int64
	taken, given uint64 // the number of the directive that was taken last, and its word
}

func openStepRecord() (*stepRecord, error) {
	file, err := os.OpenFile(os.Getenv(progress.EnvFile), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	b, err := unix.Mmap(int(file.Fd()), 0, 64, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	(*atomic.Uint64)(unsafe.Pointer(&b[40])).Store(1)
	return &stepRecord{
		step: (*atomic.Int64)(unsafe.Pointer(&b[16])), asked: (*atomic.Uint64)(unsafe.Pointer(&b[24])),
		answer: (*atomic.Uint64)(unsafe.Pointer(&b[32])), reach: (*atomic.Int64)(unsafe.Pointer(&b[48])),
	}, nil
}

// report reports a step, waits while the agent says so, and tells whether there is a directive
// to be taken.
func (s *stepRecord) report(step int) (directive bool) {
	const phases, hold, release = 0xff, 1, 2
	s.step.Store(int64(step))
	word := s.asked.Load()
	for since := time.Now(); word&phases == hold; word = s.asked.Load() {
		if time.Since(since) > progress.HoldLimit {
			s.answer.Store(word &^ phases)
			return false
		}
		s.answer.Store(word&^phases | 1)
		time.Sleep(time.Millisecond)
	}
	if number := word >> 24; word&phases == release && number > s.taken && int64(step) >= s.reach.Load() {
		s.taken, s.given = number, word&^phases
		s.answer.Store(s.given | 2)
		return true
	}
	return false
}

func (s *stepRecord) saved() { s.answer.Store(s.given | 3) }

package cli

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"rallypoint/core/rendezvous"
	"rallypoint/internal/testkit"
)

// The variables of `make campaign`: seeds with commas, and the number of faults of each.
const (
	envCampaign = "RALLYPOINT_CAMPAIGN"
	envFaults   = "RALLYPOINT_CAMPAIGN_FAULTS"
)

// trainSome makes rank 0 train: each step is made from the checkpoint of the one before. All end when that has come
// to the step of the file goal.
const trainSome = `trap 'exit 0' TERM
	echo "$RALLYPOINT_ROUND $GROUP_WORLD_SIZE $WORLD_SIZE $RANK $MASTER_ADDR:$MASTER_PORT $TORCHELASTIC_RESTART_COUNT $ROLE_NAME:$ROLE_RANK/$ROLE_WORLD_SIZE" > $SAY
	step=0 sum=0
	[ -e checkpoint ] && read step sum < checkpoint
	while :; do
		mv fail-$NODE failed-$NODE 2> /dev/null && exit 3
		if [ $RANK = 0 ]; then
			step=$((step + 1)) sum=$(((sum * 31 + step) % 1000003))
			echo $step $sum > checkpoint-$$ && mv checkpoint-$$ checkpoint
		else
			read step sum < checkpoint
		fi 2> /dev/null
		goal=; [ -e goal ] && read goal < goal
		[ "$step" -ge "${goal:-1000000000}" ] && exit 0
		sleep 0.1
	done`

// undisturbed is the checkpoint of a step in a job without a fault.
func undisturbed(step int) string {
	sum := 0
	for s := range step {
		sum = (sum*31 + s + 1) % 1000003
	}
	return fmt.Sprintf("%d %d", step, sum)
}

// campaign is a job of some machines to which faults happen, one after the other.
type campaign struct {
	*spreadJob
	seen   seenRounds
	random *rand.Rand
	nnodes string
}

// campaignFaults are what may happen to the job. Each ends with a network that is whole and with a node on
// each machine.
var campaignFaults = []struct {
	name string
	make func(c *campaign, machine int)
}{
	{"kill the agent", func(c *campaign, m int) {
		c.down(m)
		c.pause(2)
		c.up(m)
	}},
	{"stop the agent for a while", func(c *campaign, m int) {
		c.signal(syscall.SIGSTOP, m)
		c.pause(3)
		c.signal(syscall.SIGCONT, m)
	}},
	{"a worker fails", func(c *campaign, m int) {
		testkit.WriteFile(c.t, c.dir+"/fail-"+strconv.Itoa(m), nil)
		testkit.Eventually(c.t, "the worker has failed", func() bool { return os.Remove(c.dir+"/failed-"+strconv.Itoa(m)) == nil })
	}},
	{"cut off", func(c *campaign, m int) {
		c.net.cut(m, 0)
		c.pause(3)
		c.net.mend()
	}},
	{"cut what it gets", func(c *campaign, m int) {
		c.net.drop(0, m)
		c.pause(3)
		c.net.mend()
	}},
	{"cut what it sends", func(c *campaign, m int) {
		c.net.drop(m, 0)
		c.pause(3)
		c.net.mend()
	}},
	{"refuse new connections", func(c *campaign, m int) {
		c.net.refuse(0, m, c.port, allPorts)
		c.pause(2)
		c.net.mend()
	}},
	{"a flapping link", func(c *campaign, m int) {
		for range 2 + c.random.IntN(5) {
			c.net.cut(m, 0)
			c.pause(0.6)
			c.net.mend()
			c.pause(0.6)
		}
	}},
	{"power off, and on", func(c *campaign, m int) {
		c.net.cut(m, 0)
		c.down(m)
		c.pause(3)
		c.net.mend()
		c.up(m)
	}},
	{"drain", func(c *campaign, m int) {
		c.admin("drain", "--node", c.id(m), "--within", "1s")
		c.nodes[m-1].end()
		c.admin("undrain", "--node", c.id(m))
		c.up(m)
	}},
	{"scale down, and up", func(c *campaign, _ int) {
		c.admin("scale", "--target", strconv.Itoa(len(c.nodes)-1), "--within", "1s")
		c.pause(2)
		c.admin("scale", "--target", strconv.Itoa(len(c.nodes)), "--within", "1s")
	}},
	{"save", func(c *campaign, _ int) { c.admin("save", "--within", "1s") }},
}

func (c *campaign) id(machine int) string { return "n" + strconv.Itoa(machine) }

// pause lets a fault last: a drawn time of up to so many leases.
func (c *campaign) pause(most float64) { time.Sleep(leases(most * c.random.Float64())) }

func (c *campaign) down(machine int) {
	c.signal(syscall.SIGKILL, machine)
	c.nodes[machine-1].end()
}

func (c *campaign) up(machine int) { c.nodes[machine-1] = c.start(machine, c.nnodes, "0.1") }

// admin has the job do something, from the first machine that reaches it.
func (c *campaign) admin(action string, args ...string) {
	c.t.Helper()
	said := ""
	testkit.Eventually(c.t, action+" is accepted", func() bool {
		for m := range c.nodes {
			command := exec.Command(os.Args[0], append([]string{"admin", action, c.addr(m + 1), "--reason", "campaign"}, args...)...)
			command.Env = append([]string{testkit.EndAtOnce, asCommand + "=1", "PATH=" + os.Getenv("PATH")}, c.env...)
			out, err := c.net.on(m+1, command).CombinedOutput()
			if said = string(out); err == nil {
				return true
			}
		}
		return false
	})
	c.t.Logf("admin %s: %s", action, strings.TrimSpace(said))
}

// whole waits until all nodes run in one round, as their host says.
func (c *campaign) whole() {
	c.t.Helper()
	testkit.Eventually(c.t, "all nodes run in one round", func() bool {
		for m := range c.nodes {
			for _, r := range statusOf(c.harness, c.addr(m+1), c.from(m+1)).Runs {
				if r.Counts.Running == len(c.nodes) && r.Phase == rendezvous.PhaseRunning {
					return true
				}
			}
		}
		return false
	})
	c.seen.rest(c.harness)
}

// TestCampaign has drawn faults happen to a job of five machines. It is in one round of all of them after each; no two
// rounds have one number; what the hosts have recorded keeps the guarantees; and in the end its checkpoint is that
// of a job without a fault.
func TestCampaign(t *testing.T) {
	seeds, faults := os.Getenv(envCampaign), 12
	if seeds == "" {
		t.Skip("make campaign runs it")
	}
	if text := os.Getenv(envFaults); text != "" {
		faults = testkit.Must(strconv.Atoi(text))(t)
	}
	for text := range strings.SplitSeq(seeds, ",") {
		seed := testkit.Must(strconv.ParseUint(text, 10, 64))(t)
		t.Run("seed "+text, func(t *testing.T) {
			const machines = 5
			c := &campaign{random: rand.New(rand.NewPCG(seed, 0)), nnodes: fmt.Sprintf("2:%d", machines)}
			c.spreadJob, c.seen = newFaultJobOf(t, trainSome, c.nnodes, machines, machines, ",node_id=n$NODE")
			for n := range faults {
				fault, machine := campaignFaults[c.random.IntN(len(campaignFaults))], 1+c.random.IntN(machines)
				t.Logf("%v: fault %d: %s, machine %d", time.Now().Format(time.TimeOnly), n+1, fault.name, machine)
				fault.make(c, machine)
				if n+1 == faults || c.random.IntN(3) > 0 { // else the next one happens to what is recovering
					c.whole()
				}
			}
			var step int
			_, err := fmt.Sscan(string(testkit.ReadFile(t, c.dir+"/checkpoint")), &step)
			testkit.Check(t, err)
			goal := step + 20
			testkit.WriteFile(t, c.dir+"/goal", []byte(strconv.Itoa(goal)+"\n"))
			c.ended(anyHosts)
			if got := strings.TrimSpace(string(testkit.ReadFile(t, c.dir+"/checkpoint"))); got != undisturbed(goal) {
				t.Errorf("the last checkpoint is %q, want %q", got, undisturbed(goal))
			}
			c.seen.rest(c.harness)
		})
	}
}

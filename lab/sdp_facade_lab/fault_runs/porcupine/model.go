package main

// What the interface promises of the commands of a subarray, as two sequential objects. The tables are written from
// docs/how-to/command-from-tm.md, and share nothing with the facade.
//
// A subarray has its State and obsState, and the commands that it was given. Its operations are:
//
//	give    a command is admitted: State and obsState permit it, and the command before it has taken effect
//	take    the command is on the bus; obsState shows its transitional state from here on
//	end     the command has an outcome
//	refuse  a command is not admitted: the refusal names the state that forbids it, or the command under way
//	read    a client reads State, obsState or scanID
//
// Between take and end a command takes effect, or leads to FAULT, at a moment that no client sees. So a state of the
// model is a set of subarrays: all those that agree with the operations so far. A command that was executed and timed
// out may take effect later, until another one does.
//
// A command by itself is a register that is written once, its outcome, with two operations: a client looks at it, and a
// controller executes the command, once at most if the interface does not call it repeatable.

import (
	"fmt"
	"slices"

	"github.com/anishathalye/porcupine"
)

type definition struct {
	state        string
	obsStates    []string
	transitional string
	target       string
	overtakes    bool
}

var definitions = map[string]definition{
	"On":                  {"OFF", []string{"EMPTY", "FAULT"}, "", "EMPTY", false},
	"Off":                 {"ON", nil, "", "EMPTY", true},
	"AssignResources":     {"ON", []string{"EMPTY", "IDLE"}, "RESOURCING", "IDLE", false},
	"ReleaseResources":    {"ON", []string{"IDLE"}, "RESOURCING", "IDLE", false}, // one of two receptors
	"ReleaseAllResources": {"ON", []string{"IDLE"}, "RESOURCING", "EMPTY", false},
	"Configure":           {"ON", []string{"IDLE", "READY"}, "CONFIGURING", "READY", false},
	"Scan":                {"ON", []string{"READY"}, "", "SCANNING", false},
	"EndScan":             {"ON", []string{"SCANNING"}, "", "READY", false},
	"End":                 {"ON", []string{"READY"}, "", "IDLE", false},
	"Abort": {"ON", []string{"RESOURCING", "IDLE", "CONFIGURING", "READY", "SCANNING", "RESETTING"},
		"ABORTING", "ABORTED", true},
	"ObsReset": {"ON", []string{"ABORTED", "FAULT"}, "RESETTING", "IDLE", false},
	"Restart":  {"ON", []string{"ABORTED", "FAULT"}, "RESTARTING", "EMPTY", false},
}

var passing = []string{"RESOURCING", "CONFIGURING", "ABORTING", "RESETTING", "RESTARTING"}

type input struct {
	Op         string `json:"op"`
	Id         string `json:"id,omitempty"`
	Command    string `json:"command,omitempty"`
	Scan       int64  `json:"scan,omitempty"`
	Attribute  string `json:"attribute,omitempty"`
	Repeatable bool   `json:"repeatable,omitempty"`
	Outcome    string `json:"outcome,omitempty"`    // of a command that is given: what it comes to in the end
	Executions int    `json:"executions,omitempty"` // the same
}

type output struct {
	Status string `json:"status,omitempty"`
	Got    string `json:"got,omitempty"`    // State or obsState, as read or as a refusal names it
	While  string `json:"while,omitempty"`  // id of the command under way that a refusal names
	Absent bool   `json:"absent,omitempty"` // a refusal says that a receptor is not assigned
	Scan   int64  `json:"scan,omitempty"`
}

type phase int

const (
	waiting   phase = iota
	halfway         // On and Off change State and obsState, one after the other
	effective       // its effect can be seen
	faulty          // FAULT can be seen
	overtaken       // the effect of Abort or Off can be seen
)

type command struct {
	id, name   string
	scan       int64
	outcome    string
	executions int
	taken      bool
	phase      phase
}

// mayBecome says whether a phase can lead to the outcome that the command has in the end; this spares the search what
// would fail there.
func (c command) mayBecome(to phase) bool {
	switch c.outcome {
	case "COMPLETED":
		return to != faulty
	case "ABORTED":
		return to != faulty && c.executions > 1 // a crash came between the effect and the outcome
	case "REJECTED", "UNDELIVERED":
		return to == faulty
	}
	return true
}

func (c command) settled() bool {
	return c.phase > halfway || c.phase == halfway && c.name == "On"
}

type subarray struct {
	state, obsState string // as reported
	scan            int64
	assigned        bool      // the receptor that ReleaseResources names
	given           []command // without an outcome, the oldest first
	late            []command // executed and timed out: the controller may yet report their effect
}

func (s subarray) equal(t subarray) bool {
	return s.state == t.state && s.obsState == t.obsState && s.scan == t.scan && s.assigned == t.assigned &&
		slices.Equal(s.given, t.given) && slices.Equal(s.late, t.late)
}

// with returns a copy with another phase of a command.
func (s subarray) with(at int, to phase) subarray {
	s.given = slices.Clone(s.given)
	s.given[at].phase = to
	return s
}

func (s subarray) permits(d definition, obsState string) bool {
	return s.state == d.state && (d.obsStates == nil || slices.Contains(d.obsStates, obsState))
}

// shown is the obsState that a client reads.
func (s subarray) shown() string {
	for i := len(s.given) - 1; i >= 0; i-- {
		c := s.given[i]
		if c.name == "On" || c.name == "Off" {
			if c.phase != waiting {
				break
			}
		} else if c.taken {
			if d := definitions[c.name]; c.phase == waiting && d.transitional != "" {
				return d.transitional
			}
			break
		}
	}
	return s.obsState
}

// after returns the attributes that a command leads to.
func (s subarray) after(c command) subarray {
	s.obsState = definitions[c.name].target
	switch c.name {
	case "Scan":
		s.scan = c.scan
	case "AssignResources":
		s.assigned = true
	case "On", "Configure":
	case "Off", "ReleaseAllResources", "Restart":
		s.scan, s.assigned = 0, false
	case "ReleaseResources":
		s.assigned = false
	default:
		s.scan = 0
	}
	return s
}

// partly returns what a command may have left that did not complete: nothing, or all but its final state.
func (s subarray) partly(c command) []subarray {
	all := s.after(c)
	all.obsState = s.obsState
	return []subarray{s, all}
}

// next returns what may happen to a command without being seen.
func (s subarray) next(at int) []subarray {
	c := s.given[at]
	d := definitions[c.name]
	earlier := slices.ContainsFunc(s.given[:at], func(e command) bool { return e.taken && !e.settled() })
	if !c.taken || earlier && !d.overtakes || c.phase > halfway {
		return nil
	}
	if c.phase == halfway {
		done := s.after(c).with(at, effective)
		if c.name == "Off" {
			done.state = "OFF"
			done = done.overtake(at)
		}
		return []subarray{done}
	}
	var found []subarray
	if c.mayBecome(faulty) && (c.outcome != "REJECTED" || slices.Contains(passing, s.obsState)) {
		for _, left := range s.partly(c) {
			left.obsState = "FAULT"
			found = append(found, left.with(at, faulty))
		}
	}
	switch {
	case !c.mayBecome(effective):
	case c.name == "On":
		on := s.with(at, halfway)
		on.state = "ON"
		found = append(found, on)
	case c.name == "Off":
		found = append(found, s.after(c).with(at, halfway))
	case c.name == "ReleaseResources" && !s.assigned:
	case d.overtakes && s.state == d.state:
		found = append(found, s.after(c).with(at, effective).overtake(at))
	case !d.overtakes && s.permits(d, s.obsState):
		found = append(found, s.after(c).with(at, effective))
	}
	for i := range found {
		found[i].late = nil // a controller reports one effect after the other
	}
	return found
}

// lately returns what a command that has timed out may lead to without being seen.
func (s subarray) lately(at int) []subarray {
	c := s.late[at]
	d := definitions[c.name]
	s.late = s.late[at+1:]
	if s.state != d.state || !d.overtakes && s.obsState != d.transitional && !s.permits(d, s.obsState) {
		return nil
	}
	done, failed := s.after(c), s
	failed.obsState = "FAULT"
	switch c.name {
	case "On":
		done.state = "ON"
	case "Off":
		done.state = "OFF"
	}
	return []subarray{done, failed}
}

func (s subarray) overtake(at int) subarray {
	for i := range s.given[:at] {
		if !s.given[i].settled() {
			s.given[i].phase = overtaken
		}
	}
	return s
}

func (s subarray) step(in input, out output) []subarray {
	d := definitions[in.Command]
	at := slices.IndexFunc(s.given, func(c command) bool { return c.id == in.Id })
	newest := len(s.given) - 1
	under := newest >= 0 && !s.given[newest].settled()
	holds := false
	switch in.Op {
	case "read":
		holds = out.Got == s.shown()
		if in.Attribute == "State" {
			holds = out.Got == s.state
		} else if in.Attribute == "scanID" {
			holds = out.Scan == s.scan || slices.ContainsFunc(s.given, func(c command) bool {
				return c.taken && !c.settled() && out.Scan == s.after(c).scan
			})
		}
	case "refuse":
		if out.While != "" {
			holds = under && s.given[newest].id == out.While && !d.overtakes
		} else {
			holds = s.forbids(d, out.Got, s.shown())
		}
	case "give":
		if at >= 0 || !s.permits(d, s.shown()) || under && !d.overtakes {
			return nil
		}
		s.given = append(slices.Clone(s.given), command{
			id: in.Id, name: in.Command, scan: in.Scan, outcome: in.Outcome, executions: in.Executions,
		})
		return []subarray{s}
	case "take":
		if at < 0 {
			return nil
		}
		s = s.with(at, s.given[at].phase)
		s.given[at].taken = true
		return []subarray{s}
	case "end":
		if at < 0 {
			return nil
		}
		c := s.given[at]
		found := s.end(c, out)
		for i := range found {
			found[i].given = slices.Delete(slices.Clone(s.given), at, at+1)
		}
		return found
	}
	if !holds {
		return nil
	}
	return []subarray{s}
}

// forbids says whether a label that a refusal names is the present one, and forbids the command.
func (s subarray) forbids(d definition, label, obsState string) bool {
	if label == s.state {
		return label != d.state
	}
	return label == obsState && d.obsStates != nil && !slices.Contains(d.obsStates, label)
}

// end returns what an outcome may leave; the caller takes the command away.
func (s subarray) end(c command, out output) []subarray {
	d := definitions[c.name]
	passed := s
	passed.obsState = d.transitional
	switch {
	case c.taken == (out.Status == "UNDELIVERED"):
		return nil
	case out.Status == "COMPLETED":
		if c.phase != effective {
			return nil
		}
	case out.Status == "REJECTED":
		// An expired command is refused even though Abort or Off, which came later, have taken effect.
		if c.phase == halfway || c.phase == effective || c.phase == overtaken && out.Got != "" ||
			out.Got != "" && !s.forbids(d, out.Got, s.obsState) || out.Absent && s.assigned {
			return nil
		}
	case c.phase != waiting:
	case out.Status == "FAILED":
		return s.partly(c)
	case out.Status == "ABORTED", out.Status == "TIMED_OUT":
		found := s.partly(c)
		if d.transitional != "" {
			found = append(found, passed.partly(c)...)
		}
		if out.Status == "TIMED_OUT" && c.executions > 0 {
			for _, one := range found {
				one.late = append(slices.Clone(s.late), c)
				found = append(found, one)
			}
		}
		return found
	}
	return []subarray{s}
}

// closed adds to some subarrays all that may have become of them without being seen.
func closed(found []subarray) []interface{} {
	for i := 0; i < len(found); i++ {
		var next []subarray
		for at := range found[i].given {
			next = append(next, found[i].next(at)...)
		}
		for at := range found[i].late {
			next = append(next, found[i].lately(at)...)
		}
		for _, one := range next {
			if !slices.ContainsFunc(found, one.equal) {
				found = append(found, one)
			}
		}
	}
	states := make([]interface{}, len(found))
	for i, one := range found {
		states[i] = one
	}
	return states
}

var ofSubarrays = (&porcupine.NondeterministicModel{
	Init: func() []interface{} { return []interface{}{subarray{state: "OFF", obsState: "EMPTY"}} },
	Step: func(state, in, out interface{}) []interface{} {
		return closed(state.(subarray).step(in.(input), out.(output)))
	},
	Equal:             func(one, other interface{}) bool { return one.(subarray).equal(other.(subarray)) },
	DescribeOperation: describe,
	DescribeState:     func(state interface{}) string { return fmt.Sprintf("%+v", state) },
}).ToModel()

type fate struct {
	outcome  string
	executed bool
}

var ofCommands = porcupine.Model{
	Init: func() interface{} { return fate{} },
	Step: func(state, in, out interface{}) (bool, interface{}) {
		now, operation, status := state.(fate), in.(input), out.(output).Status
		if operation.Op == "execute" {
			return now.outcome == "" && (!now.executed || operation.Repeatable), fate{executed: true}
		}
		switch status {
		case "HELD", "NEW", "SENT", "ACCEPTED", "IN_PROGRESS":
			return now.outcome == "", now
		case "COMPLETED":
			return now.executed && (now.outcome == "" || now.outcome == status), fate{status, true}
		case "REJECTED", "UNDELIVERED":
			return !now.executed && (now.outcome == "" || now.outcome == status), fate{status, false}
		}
		return now.outcome == "" || now.outcome == status, fate{status, now.executed}
	},
	DescribeOperation: describe,
}

func describe(in, out interface{}) string {
	i, o := in.(input), out.(output)
	text := i.Op
	for _, word := range []string{i.Command, i.Attribute, i.Id, o.Status, o.Got, o.While} {
		if word != "" {
			text += " " + word
		}
	}
	if i.Attribute == "scanID" || i.Scan != 0 {
		text += fmt.Sprint(" ", i.Scan+o.Scan)
	}
	if o.Absent {
		text += " receptor not assigned"
	}
	return text
}

// porcupine judges a history of commands: porcupine HISTORY PICTURE
//
// HISTORY has one operation a line, as a JSON object: client, device, call and return [us], input and output; without
// return, the operation may have happened at any later time. The exit code is 0 if the history is linearizable, 1 if it
// is not, or not decided in time, and 2 if it cannot be read. The parts that are not linearizable are named, and
// Porcupine draws the first of them: PICTURE is a page for a browser.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

const longest = 60 * time.Second

type line struct {
	Client int    `json:"client"`
	Device string `json:"device"`
	Call   int64  `json:"call"`
	Return *int64 `json:"return"`
	Input  input  `json:"input"`
	Output output `json:"output"`
}

func main() {
	if len(os.Args) != 3 {
		end(2, "usage: porcupine HISTORY PICTURE")
	}
	parts, names, err := read(os.Args[1])
	if err != nil {
		end(2, "%s: %v", os.Args[1], err)
	}
	count, found := 0, ""
	for _, name := range names {
		model := ofSubarrays
		if isOfCommand(parts[name][0]) {
			model = ofCommands
		}
		count += len(parts[name])
		result, info := porcupine.CheckOperationsVerbose(model, parts[name], longest)
		if result == porcupine.Ok {
			continue
		}
		if found == "" {
			if err := porcupine.VisualizePath(model, info, os.Args[2]); err != nil {
				end(2, "%v", err)
			}
		}
		verdict := "not linearizable"
		if result == porcupine.Unknown {
			verdict = fmt.Sprintf("not decided within %s", longest)
		}
		found += fmt.Sprintf("%s: %s\n", verdict, explain(name, parts[name], info))
	}
	if found != "" {
		end(1, "%s%s shows the first", found, os.Args[2])
	}
	fmt.Printf("linearizable: %d operations, %d parts\n", count, len(names))
}

func isOfCommand(one porcupine.Operation) bool {
	op := one.Input.(input).Op
	return op == "look" || op == "execute"
}

// read returns the operations of each subarray and of each command, and their names in the order of the history.
func read(path string) (map[string][]porcupine.Operation, []string, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	parts := map[string][]porcupine.Operation{}
	var names []string
	lines := bufio.NewScanner(file)
	for number := 1; lines.Scan(); number++ {
		var one line
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			return nil, nil, fmt.Errorf("line %d: %w", number, err)
		}
		made := porcupine.Operation{
			ClientId: one.Client, Call: one.Call, Return: math.MaxInt64, Input: one.Input, Output: one.Output,
		}
		if one.Return != nil {
			made.Return = *one.Return
		}
		name := one.Device
		switch one.Input.Op {
		case "look", "execute":
			name = one.Input.Id
		case "give", "refuse":
			if _, known := definitions[one.Input.Command]; !known {
				return nil, nil, fmt.Errorf("line %d: unknown command %q", number, one.Input.Command)
			}
		case "take", "end", "read":
		default:
			return nil, nil, fmt.Errorf("line %d: unknown operation %q", number, one.Input.Op)
		}
		if made.Return < made.Call || name == "" {
			return nil, nil, fmt.Errorf("line %d: returns before its call, or names no device or command", number)
		}
		if parts[name] == nil {
			names = append(names, name)
		}
		parts[name] = append(parts[name], made)
	}
	return parts, names, lines.Err()
}

// explain names the operation that fits behind no order of those before it.
func explain(name string, history []porcupine.Operation, info porcupine.LinearizationInfo) string {
	var best []int
	for _, order := range info.PartialLinearizations()[0] {
		if len(order) > len(best) {
			best = order
		}
	}
	text := fmt.Sprintf("%s: an order of %d of %d operations was found", name, len(best), len(history))
	ids := make([]int, 0, len(history))
	for id := range history {
		if !slices.Contains(best, id) {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b int) int { return int(min(max(history[a].Return-history[b].Return, -1), 1)) })
	for _, id := range ids[:min(len(ids), 3)] {
		one := history[id]
		text += fmt.Sprintf("\n  without: client %d, %d us: %s", one.ClientId, one.Call, describe(one.Input, one.Output))
	}
	return text
}

func end(code int, format string, words ...interface{}) {
	fmt.Fprintf(os.Stderr, format+"\n", words...)
	os.Exit(code)
}

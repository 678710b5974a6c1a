// Package monitoring runs cases of alert expressions in the real PromQL engine.
package monitoring

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/prometheus/promql/promqltest"
)

// TestAlerts runs every *.test file of the folder that RACKGATE_CASES names.
func TestAlerts(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(os.Getenv("RACKGATE_CASES"), "*.test"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			promqltest.RunTest(t, string(content), promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery))
		})
	}
}

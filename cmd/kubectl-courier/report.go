package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"
)

// reportVersion is the apiVersion of every report in JSON or YAML, so that scripts notice when a field changes meaning.
const reportVersion = "cli.kubelet-ca-courier/v1"

// briefRows is how many nodes a table shows at most when nothing is wrong with them; -o wide shows all.
const briefRows = 50

// report is the answer of a command in both forms: for scripts and for eyes.
type report struct {
	// kind and data are what -o json and its like print.
	kind string
	data any
	// summary is the answer in a few lines; it comes before the table, as the table may be long.
	summary []string
	columns []metav1.TableColumnDefinition
	// rows holds the failures first.
	rows []row
}

// row is one line of a report's table.
type row struct {
	cells []any
	// quiet rows have nothing to tell an admin; they are left out where there are many.
	quiet bool
}

// column names a column of a report's table; wide ones show with -o wide alone.
func column(name string, wide bool) metav1.TableColumnDefinition {
	var priority int32
	if wide {
		priority = 1
	}
	return metav1.TableColumnDefinition{Name: name, Type: "string", Priority: priority}
}

// outputFlags is -o with the formats of kubectl get.
type outputFlags struct {
	print *genericclioptions.PrintFlags
}

// newOutputFlags returns flags for which no -o means the table.
func newOutputFlags() *outputFlags {
	flags := genericclioptions.NewPrintFlags("")
	flags.NamePrintFlags = nil // a report has no name
	return &outputFlags{print: flags}
}

// format is the value of -o.
func (o *outputFlags) format() string { return *o.print.OutputFormat }

// human says whether a person reads the output.
func (o *outputFlags) human() bool { return o.format() == "" || o.format() == "wide" }

// validate refuses an unknown format before any work is done.
func (o *outputFlags) validate() error {
	if o.human() {
		return nil
	}
	_, err := o.print.ToPrinter()
	if genericclioptions.IsNoCompatiblePrinterError(err) {
		return usageError(fmt.Sprintf("unknown output format %q", o.format()),
			"use wide, "+strings.Join(o.print.AllowedFormats(), ", "))
	}
	return err
}

// write prints the report.
func (o *outputFlags) write(w io.Writer, r report) error {
	if o.human() {
		return writeTable(w, r, o.format() == "wide")
	}
	printer, err := o.print.ToPrinter()
	if err != nil {
		return err
	}
	object, err := r.object()
	if err != nil {
		return err
	}
	return printer.PrintObj(object, w)
}

// object turns the report into the form that cli-runtime's printers take.
func (r report) object() (runtime.Object, error) {
	raw, err := json.Marshal(r.data)
	if err != nil {
		return nil, fmt.Errorf("encoding the report: %w", err)
	}
	u := &unstructured.Unstructured{}
	if err := json.Unmarshal(raw, &u.Object); err != nil {
		return nil, fmt.Errorf("encoding the report: %w", err)
	}
	u.SetAPIVersion(reportVersion)
	u.SetKind(r.kind)
	return u, nil
}

// writeTable prints the summary and then the nodes, those that have something to tell first.
func writeTable(w io.Writer, r report, wide bool) error {
	if _, err := fmt.Fprintln(w, strings.Join(r.summary, "\n")); err != nil {
		return err
	}
	table := &metav1.Table{ColumnDefinitions: r.columns}
	leftOut := 0
	for _, row := range r.rows {
		if row.quiet && !wide && len(r.rows) > briefRows {
			leftOut++
			continue
		}
		table.Rows = append(table.Rows, metav1.TableRow{Cells: row.cells})
	}
	if len(table.Rows) > 0 {
		if _, err := fmt.Fprintln(w); err != nil {
			return err
		}
		if err := printers.NewTablePrinter(printers.PrintOptions{Wide: wide}).PrintObj(table, w); err != nil {
			return err
		}
	}
	if leftOut > 0 {
		_, err := fmt.Fprintf(w, "\n%d nodes with nothing to report are left out; -o wide shows them\n", leftOut)
		return err
	}
	return nil
}

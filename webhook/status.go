package webhook

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"kubelet-ca-courier/bundle"
)

// maxFindings is how many reasons or warnings one answer lists. A bundle of a megabyte can have thousands.
const maxFindings = 20

// refusal is the Status of a denial: Invalid with one cause for each reason, the form for which kubectl prints every cause
// with its field; or Forbidden for a deletion, which has no field to be invalid.
func refusal(request admission.Request, j judgement) error {
	reasons := j.verdict.Reasons
	status := metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusUnprocessableEntity,
		Reason:  metav1.StatusReasonInvalid,
		Message: summary(reasons),
		Details: &metav1.StatusDetails{Kind: request.Kind.Kind, Name: request.Name},
	}
	if reasons[0].Code == bundle.Deletion {
		status.Code, status.Reason = http.StatusForbidden, metav1.StatusReasonForbidden
	}
	for _, f := range reasons[:min(len(reasons), maxFindings)] {
		status.Details.Causes = append(status.Details.Causes, metav1.StatusCause{
			Type:    metav1.CauseType(f.Code),
			Field:   fieldOf(f, j.bundleField),
			Message: line(f),
		})
	}
	if more := len(reasons) - maxFindings; more > 0 {
		status.Details.Causes = append(status.Details.Causes, metav1.StatusCause{Message: andMore(more), Field: j.bundleField})
	}
	return &apierrors.StatusError{ErrStatus: status}
}

// summary is all reasons in one text, for readers that do not look at causes.
func summary(reasons []bundle.Finding) string {
	return strings.Join(lines(reasons), "; ")
}

// warnings are the verdict's warnings as the API server hands them to the client.
func warnings(v bundle.Verdict) admission.Warnings { return lines(v.Warnings) }

// lines writes findings one a line, the first ones only where there are too many to read.
func lines(findings []bundle.Finding) []string {
	all := make([]string, 0, min(len(findings), maxFindings)+1)
	for _, f := range findings[:min(len(findings), maxFindings)] {
		all = append(all, line(f))
	}
	if more := len(findings) - maxFindings; more > 0 {
		all = append(all, andMore(more))
	}
	return all
}

// line is a finding as a person reads it, its code first.
func line(f bundle.Finding) string { return fmt.Sprintf("%s: %s", f.Code, f.Message) }

// andMore stands for findings that are not listed.
func andMore(n int) string {
	return fmt.Sprintf("and %d more; kubectl courier check lists all", n)
}

// fieldOf is the path of the field that a reason is about.
func fieldOf(f bundle.Finding, bundleField string) string {
	switch f.Code {
	case bundle.Deletion:
		return "metadata"
	case bundle.Immutable:
		return "immutable"
	case bundle.BadAllowance:
		return field.NewPath("metadata", "annotations").Key(bundle.AllowanceAnnotation).String()
	}
	return bundleField
}

// fieldPath is the path of the bundle; data, where an admin would write it, if it is missing.
func fieldPath(v value, key string) string {
	if v.field == "" {
		return field.NewPath("data").Key(key).String()
	}
	return field.NewPath(v.field).Key(key).String()
}

// codes are the codes of a verdict's reasons, each once.
func codes(v bundle.Verdict) []bundle.Code {
	return distinct(v.Reasons)
}

// distinct are the codes of findings, each once.
func distinct(findings []bundle.Finding) []bundle.Code {
	all := make([]bundle.Code, 0, len(findings))
	for _, f := range findings {
		all = append(all, f.Code)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

"""Labels and annotations of the objects that the operator makes."""

from __future__ import annotations

JOB_LABEL = "bamboo.dev/job"
PART_OF = ("app.kubernetes.io/part-of", "bamboo")
"""A label of all that the operator makes, and its value."""
JOB_UID_LABEL = "bamboo.dev/job-uid"
"""UID of the job for which a pod was made. It selects pods; the annotation is what counts."""
JOB_UID_ANNOTATION = "bamboo.dev/job-uid"
"""UID of the job for which a pod was made. It stays when the job is deleted without its pods."""
PIPELINE_LABEL = "bamboo.dev/pipeline"
STAGE_LABEL = "bamboo.dev/stage"
INCARNATION_LABEL = "bamboo.dev/incarnation"
TEMPLATE_ANNOTATION = "bamboo.dev/template"
"""Short for the parts of the spec that a pod was made from."""
WISH_ANNOTATION = "bamboo.dev/wish"
"""Short for what the pods ask for that a Workload was made for."""
AVOIDS_ANNOTATION = "bamboo.dev/avoids"
"""Names of the nodes on which a pod must not be placed, separated by spaces."""
AVOIDS_TYPES_ANNOTATION = "bamboo.dev/avoids-types"
"""Instance types of nodes on which a pod must not be placed, separated by spaces."""
ON_DEMAND_ANNOTATION = "bamboo.dev/on-demand"
"""Says "true" on a pod that need not be on a spot node although its job prefers them."""

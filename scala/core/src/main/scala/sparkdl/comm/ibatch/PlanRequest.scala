package sparkdl.comm.ibatch

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode

/**
 * A request for a plan, and its answer, in JSON.
 *
 * Request: `startup` (seconds), `transfer` and `compute` (seconds of each layer), `bytes` (of each layer; may be left out),
 * `policy`, `direction` ("pull" or "push"). Answer: `batches`, pairs of first and last layer, counted from 1, in the order
 * in which they travel; `predicted_seconds`; `optimal_ratio`; `schedule`, for each batch when it is predicted to be
 * transferred and computed: begin and end of each, in seconds.
 */
object PlanRequest {

  /** @throws IllegalArgumentException if the request makes no sense */
  def answer(request: JsonNode, reply: ObjectNode): Unit = {
    val profile = Profile(
      number(request.path("startup"), "startup"),
      elements(request, "transfer").map(number(_, "transfer")),
      elements(request, "compute").map(number(_, "compute")),
      if (request.has("bytes")) elements(request, "bytes").map(whole) else IndexedSeq.empty
    )
    val plan = Planner.plan(profile, Policy(request.path("policy").asText))
    val pulled = plan.batches.zip(new Pipeline(profile).schedule(plan))
    val travelling = request.path("direction").asText match {
      case "pull" => pulled
      case "push" => pulled.reverse.map { case (batch, step) => (batch, step.mirrored(plan.seconds)) }
      case other => throw new IllegalArgumentException(s"direction $other: pull or push")
    }
    reply.put("predicted_seconds", plan.seconds)
    reply.put("optimal_ratio", Planner.ratioToOptimal(profile, plan))
    val (batches, schedule) = (reply.putArray("batches"), reply.putArray("schedule"))
    travelling.foreach { case (batch, step) =>
      batches.addArray().add(batch.first).add(batch.last)
      val times = Seq(step.transferBegin, step.transferEnd, step.computeBegin, step.computeEnd)
      times.foldLeft(schedule.addArray())(_.add(_))
    }
  }

  private def elements(request: JsonNode, field: String): IndexedSeq[JsonNode] = {
    val value = request.path(field)
    require(value.isArray, s"a profile's $field is an array with a number for each layer, not $value")
    (0 until value.size).map(value.get)
  }

  private def number(value: JsonNode, field: String): Double = {
    require(value.isNumber, s"a profile's $field is in seconds, not $value")
    value.asDouble
  }

  private def whole(value: JsonNode): Long = {
    require(value.isIntegralNumber, s"a profile's bytes are whole numbers, not $value")
    value.asLong
  }
}

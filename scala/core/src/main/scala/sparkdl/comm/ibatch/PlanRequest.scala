package sparkdl.comm.ibatch

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode

import sparkdl.comm.Clock

/**
 * A request for a plan, and its answer, in JSON.
 *
 * Request: `startup` (seconds), `transfer` and `compute` (seconds of each layer), `bytes` (of each layer; may be left out, and
 * so may `notice_bytes`, `in_turn`, `gap`, `sum` and `update`, see [[Profile]]), `policy`, `direction` ("pull" or "push"). Answer: `batches`, pairs of
 * first and last layer, counted from 1, in the order in which they travel; `predicted_seconds`; `optimal_ratio`; `schedule`,
 * for each batch when it is predicted to be transferred and computed: begin and end of each, in seconds.
 *
 * Or, for directions that share the network: `pull` and `push`, each with the numbers of a profile, and both with
 * `batches` or both without. Answer: `pull` and `push`, each as above, and `iteration_seconds` (see [[Iteration]]). Batches
 * that are not given are chosen, as policy `ibatch` does.
 */
private[comm] object PlanRequest {

  /** @throws IllegalArgumentException if the request makes no sense */
  def answer(request: JsonNode, reply: ObjectNode, clock: Clock): Unit =
    if (request.has("pull") && request.has("push")) together(request.path("pull"), request.path("push"), reply, clock)
    else {
      val profile = profileOf(request)
      describe(
        profile,
        Planner.plan(profile, Policy(request.path("policy").asText)),
        Direction(request.path("direction").asText),
        reply
      )
    }

  private def together(pull: JsonNode, push: JsonNode, reply: ObjectNode, clock: Clock): Unit = {
    val (pulling, pushing) = (profileOf(pull), profileOf(push))
    val (pulled, pushed, seconds) =
      if (pull.has("batches") || push.has("batches")) {
        val (pulled, pushed) = (fixed(pulling, pull), fixed(pushing, push))
        (pulled, pushed, new Iteration(pulling, pushing).seconds(pulled.batches, pushed.batches))
      } else Planner.together(pulling, pushing, clock)
    describe(pulling, pulled, Direction.Pull, reply.putObject("pull"))
    describe(pushing, pushed, Direction.Push, reply.putObject("push"))
    reply.put("iteration_seconds", seconds)
  }

  private def fixed(profile: Profile, request: JsonNode): Plan = {
    val ends = elements(request, "batches").map(_.path(1).asInt).sorted
    require(
      ends.nonEmpty && ends.head > 0 && ends.distinct == ends && ends.last == profile.layers,
      s"batches of ${profile.layers} layers are pairs of first and last layer, not ${request.path("batches")}"
    )
    new Pipeline(profile).plan(ends)
  }

  private def profileOf(request: JsonNode): Profile = Profile(
    number(request.path("startup"), "startup"),
    elements(request, "transfer").map(number(_, "transfer")),
    elements(request, "compute").map(number(_, "compute")),
    if (request.has("bytes")) elements(request, "bytes").map(whole) else IndexedSeq.empty,
    if (request.has("notice_bytes")) whole(request.path("notice_bytes")) else 0,
    request.path("in_turn").asBoolean(false),
    if (request.has("gap")) Some(number(request.path("gap"), "gap")) else None,
    if (request.has("sum")) elements(request, "sum").map(number(_, "sum")) else IndexedSeq.empty,
    if (request.has("update")) elements(request, "update").map(number(_, "update")) else IndexedSeq.empty
  )

  /** Writes the numbers of a profile, as a request has them. */
  def write(profile: Profile, request: ObjectNode): Unit = {
    def array(field: String, layers: IndexedSeq[Double]): Unit =
      layers.foldLeft(request.putArray(field))(_.add(_))
    if (profile.inTurn) request.put("in_turn", true)
    profile.gap.foreach(request.put("gap", _))
    Seq("sum" -> profile.sum, "update" -> profile.update).filter(_._2.nonEmpty).foreach { case (field, layers) =>
      array(field, layers)
    }
    request.put("startup", profile.startup)
    array("transfer", profile.transfer)
    array("compute", profile.compute)
    profile.bytes.foldLeft(request.putArray("bytes"))(_.add(_))
    request.put("notice_bytes", profile.noticeBytes)
  }

  private def describe(profile: Profile, plan: Plan, direction: Direction, reply: ObjectNode): Unit = {
    val pulled = plan.batches.zip(new Pipeline(profile).schedule(plan))
    val travelling = direction match {
      case Direction.Pull => pulled
      case Direction.Push => pulled.map { case (batch, step) => (batch, step.mirrored(plan.seconds)) }
    }
    reply.put("predicted_seconds", plan.seconds)
    reply.put("optimal_ratio", Planner.ratioToOptimal(profile, plan))
    val (batches, schedule) = (reply.putArray("batches"), reply.putArray("schedule"))
    direction.travelling(travelling).foreach { case (batch, step) =>
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

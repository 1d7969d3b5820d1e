// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ibatch

import java.io.PrintStream
import java.nio.charset.StandardCharsets.UTF_8

import scala.io.Source

import com.fasterxml.jackson.core.JsonProcessingException
import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import com.fasterxml.jackson.databind.node.ObjectNode

import sparkdl.comm.{Clock, SystemClock}

/**
 * Request for a plan, and its answer, in JSON.
 *
 * Request: `startup` (seconds), `transfer` and `compute` (seconds of each layer), `policy`,
 * `direction` ("pull" or "push"). Optional: `bytes` of each layer, `notice_bytes`, `in_turn`,
 * `gap`, `sum`, `update` and `handling`; see [[Profile]].
 *
 * Answer: `batches`, pairs of first and last layer, counted from 1, in the order of transfer;
 * `predicted_seconds`; `optimal_ratio`; `schedule`, the predicted times of each batch: begin and
 * end of its transfer, begin and end of its computation, in seconds.
 *
 * A request for directions that share the network has `pull` and `push`, each with the fields of a
 * profile. Either both have `batches` or neither; without them, batches are chosen as by policy
 * `ibatch`. The answer has `pull` and `push`, each as above, and `predicted_iteration_seconds` (see
 * [[IterationModel]]).
 */
private[comm] object PlanRequest {

  /**
   * Write the answer to `request` into `reply`.
   *
   * @throws IllegalArgumentException if the request is not valid
   */
  def answer(request: JsonNode, reply: ObjectNode, clock: Clock): Unit =
    if (request.has("pull") && request.has("push"))
      answerBoth(request.path("pull"), request.path("push"), reply, clock)
    else {
      val profile = profileOf(request)
      describe(
        profile,
        Planner.plan(profile, Policy(request.path("policy").asText)),
        Direction(request.path("direction").asText),
        reply
      )
    }

  private def answerBoth(pull: JsonNode, push: JsonNode, reply: ObjectNode, clock: Clock): Unit = {
    val (pulling, pushing) = (profileOf(pull), profileOf(push))
    val (pulled, pushed, seconds) =
      if (pull.has("batches") || push.has("batches")) {
        val (pulled, pushed) = (fixedPlan(pulling, pull), fixedPlan(pushing, push))
        (
          pulled,
          pushed,
          new IterationModel(pulling, pushing).seconds(pulled.batches, pushed.batches)
        )
      } else Planner.planBoth(pulling, pushing, clock)
    describe(pulling, pulled, Direction.Pull, reply.putObject("pull"))
    describe(pushing, pushed, Direction.Push, reply.putObject("push"))
    reply.put("predicted_iteration_seconds", seconds)
  }

  private def fixedPlan(profile: Profile, request: JsonNode): Plan = {
    val ends = elements(request, "batches").map(_.path(1).asInt).sorted
    require(
      ends.nonEmpty && ends.head > 0 && ends.distinct == ends && ends.last == profile.layers,
      s"batches=${request.path("batches")}: expected pairs of first and last layer that cover" +
        s" ${profile.layers} layers"
    )
    new Pipeline(profile).plan(ends)
  }

  private def profileOf(request: JsonNode): Profile = Profile(
    number(request.path("startup"), "startup"),
    elements(request, "transfer").map(number(_, "transfer")),
    elements(request, "compute").map(number(_, "compute")),
    if (request.has("bytes")) elements(request, "bytes").map(wholeNumber) else IndexedSeq.empty,
    if (request.has("notice_bytes")) wholeNumber(request.path("notice_bytes")) else 0,
    request.path("in_turn").asBoolean(false),
    if (request.has("gap")) Some(number(request.path("gap"), "gap")) else None,
    if (request.has("sum")) elements(request, "sum").map(number(_, "sum")) else IndexedSeq.empty,
    if (request.has("update")) elements(request, "update").map(number(_, "update"))
    else IndexedSeq.empty,
    if (request.has("handling")) number(request.path("handling"), "handling") else 0
  )

  /** Write a profile with the fields of a request. */
  def write(profile: Profile, request: ObjectNode): Unit = {
    def array(field: String, layers: IndexedSeq[Double]): Unit =
      layers.foldLeft(request.putArray(field))(_.add(_))
    if (profile.isSequential) request.put("in_turn", true)
    profile.gap.foreach(request.put("gap", _))
    if (profile.handling > 0) request.put("handling", profile.handling)
    Seq("sum" -> profile.sum, "update" -> profile.update).filter(_._2.nonEmpty).foreach {
      case (field, layers) =>
        array(field, layers)
    }
    request.put("startup", profile.startup)
    array("transfer", profile.transfer)
    array("compute", profile.compute)
    profile.bytes.foldLeft(request.putArray("bytes"))(_.add(_))
    request.put("notice_bytes", profile.noticeBytes)
  }

  private def describe(
      profile: Profile,
      plan: Plan,
      direction: Direction,
      reply: ObjectNode
  ): Unit = {
    val pulled = plan.batches.zip(new Pipeline(profile).schedule(plan))
    val inTransferOrder = direction match {
      case Direction.Pull => pulled
      case Direction.Push => pulled.map { case (batch, step) =>
          (batch, step.mirrored(plan.seconds))
        }
    }
    reply.put("predicted_seconds", plan.seconds)
    reply.put("optimal_ratio", Planner.ratioToOptimal(profile, plan))
    val (batches, schedule) = (reply.putArray("batches"), reply.putArray("schedule"))
    direction.inTransferOrder(inTransferOrder).foreach { case (batch, step) =>
      batches.addArray().add(batch.first).add(batch.last)
      val times = Seq(step.transferBegin, step.transferEnd, step.computeBegin, step.computeEnd)
      times.foldLeft(schedule.addArray())(_.add(_))
    }
  }

  private def elements(request: JsonNode, field: String): IndexedSeq[JsonNode] = {
    val value = request.path(field)
    require(
      value.isArray,
      s"$field=$value in a profile: expected an array with a number for each layer"
    )
    (0 until value.size).map(value.get)
  }

  private def number(value: JsonNode, field: String): Double = {
    require(value.isNumber, s"$field=$value in a profile: expected seconds")
    value.asDouble
  }

  private def wholeNumber(value: JsonNode): Long = {
    require(value.isIntegralNumber, s"bytes=$value in a profile: expected whole numbers")
    value.asLong
  }
}

/**
 * Program that answers each line of standard input, a [[PlanRequest]], with a line. Its `error`
 * says why there is no plan. It needs no Spark.
 */
object PlanMain {
  def main(arguments: Array[String]): Unit = {
    val mapper = new ObjectMapper
    val out = new PrintStream(System.out, false, UTF_8)
    Source.fromInputStream(System.in, UTF_8.name).getLines().foreach { line =>
      val reply = mapper.createObjectNode()
      try PlanRequest.answer(mapper.readTree(line), reply, SystemClock)
      catch {
        case e: JsonProcessingException => reply.put("error", s"not JSON: ${e.getOriginalMessage}")
        case e: IllegalArgumentException =>
          reply.put("error", e.getMessage.stripPrefix("requirement failed: "))
      }
      out.println(mapper.writeValueAsString(reply))
    }
    out.flush()
  }
}

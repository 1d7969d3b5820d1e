// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ibatch

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import com.fasterxml.jackson.databind.node.ObjectNode
import org.scalatest.funsuite.AnyFunSuite

import sparkdl.comm.ManualClock

class AdaptiveBucketsSpec extends AnyFunSuite {
  private val mapper = new ObjectMapper
  private val clock = new ManualClock
  private val traffic =
    Traffic(
      world = 2,
      pull = IndexedSeq(64, 20),
      push = IndexedSeq(64, 20),
      noticeBytes = 0,
      pullsAhead = true
    )
  private val whole = IndexedSeq(Batch(1, 2))
  private val layerwise = IndexedSeq(Batch(1, 1), Batch(2, 2))

  private val direction = DirectionProfile(IndexedSeq(0.5, 0.25), startup = 0.001, perByte = 2e-9)
  private val pulls = RankReport(Some(direction), None, None)

  /** Reports with which pulls are best layer by layer, and pushes best in one batch. */
  private val both = RankReport(
    Some(direction.copy(perByte = 0.012)),
    Some(direction.copy(startup = 1, perByte = 0.012)),
    None
  )

  private def adaptive(
      batching: String,
      push: String = "",
      drift: Double = 0.25,
      traffic: Traffic = traffic
  ): AdaptiveBuckets =
    new AdaptiveBuckets(
      BatchingSettings(batching, push, profileIterations = 5, drift),
      traffic,
      clock
    )

  private def report(buckets: AdaptiveBuckets): JsonNode = {
    val reply = mapper.createObjectNode()
    buckets.report(reply)
    reply
  }

  private def outcomes(buckets: AdaptiveBuckets): Set[String] =
    Set("pull", "push").map(direction => report(buckets).get(direction).get("outcome").asText)

  private def kept(buckets: AdaptiveBuckets): Seq[String] =
    Seq("pull", "push").map(direction => report(buckets).get(direction).get("kept").asText)

  /** Return the measured seconds of each tried policy, which are equal in both directions. */
  private def tried(buckets: AdaptiveBuckets): Seq[(String, Double)] = {
    val found = Set("pull", "push").map(direction => report(buckets).get(direction).path("tried"))
    assert(found.size === 1)
    found.head.fieldNames.asScala.toSeq.map(policy =>
      policy -> found.head.get(policy).get("seconds").asDouble
    )
  }

  test("policies that need no profile measure nothing") {
    val blind = adaptive("layerwise", "fixed:10")
    assert(!blind.needsProfiles && blind.nextReportStep.isEmpty)
    assert((blind.pulls, blind.pushes) === ((layerwise, layerwise.reverse)))
    assert(outcomes(blind) === Set("used"))
    assert(
      report(blind).get("pull").toString ===
        """{"policy":"layerwise","kept":"layerwise","batches":[[1,1],[2,2]],"asked":"layerwise","outcome":"used"}"""
    )
    assert(kept(blind) === Seq("layerwise", "fixed:10"))
    assert(
      adaptive("ibatch", traffic = traffic.copy(world = 1)).nextReportStep.isEmpty,
      "there is no rank to pull from"
    )
  }

  test("the first plan follows a profile, and a new plan its drift") {
    val buckets = adaptive("ibatch", traffic = traffic.copy(pullsAhead = false, noticeBytes = 20))
    assert((buckets.pulls, buckets.pushes) === ((whole, whole)))
    assert(buckets.nextReportStep === Some(6))
    assert(buckets.replan(Seq(RankReport(None, None, None))) === None, "nothing was measured")
    assert(buckets.nextReportStep === Some(56))
    assert(buckets.replan(Seq(pulls)) === Some((layerwise, whole)), "pushes were not measured")
    val expected = mapper.readTree(
      """{"policy": "ibatch", "kept": "plan, 2 pulls, one per layer", "batches": [[1, 1], [2, 2]], "predicted_seconds": 0.751000064, "optimal_ratio": 1.0,
        | "profile": {"startup": 0.001, "transfer": [6.4e-8, 2e-8], "compute": [0.5, 0.25], "bytes": [64, 20],
        | "notice_bytes": 20}, "asked": "ibatch", "outcome": "used"}""".stripMargin
    )
    assert(
      report(buckets).get("pull").toString === expected.toString,
      "each of two ranks has half of each layer"
    )
    assert(report(buckets).get("push").get("batches").toString === "[[1,2]]")
    def slower(startup: Double) =
      Seq(RankReport(Some(direction.copy(startup = startup)), None, None))
    assert(buckets.replan(slower(0.0012)) === None)
    assert(buckets.replan(slower(0.0013)) === Some((layerwise, whole)))
    assert(buckets.nextReportStep === Some(206))
  }

  test("a reported profile is a request for the same plan") {
    val buckets = adaptive("optimal")
    val measured = direction.copy(gap = Some(0.0005), sum = 0.75, update = 0.75)
    buckets.replan(Seq(RankReport(Some(measured), Some(measured), None)))
    Seq("pull", "push").foreach { direction =>
      val reported = report(buckets).get(direction)
      val request = reported.get("profile").deepCopy[ObjectNode]().put("direction", direction).put(
        "policy",
        "optimal"
      )
      val reply = mapper.createObjectNode()
      PlanRequest.answer(request, reply, clock)
      Seq("predicted_seconds", "optimal_ratio", "batches").foreach(field =>
        assert(reply.get(field) === reported.get(field))
      )
    }
  }

  test("sums and updates of a step are divided among its layers by their bytes") {
    val buckets = adaptive("whole", "ibatch")
    val measured = direction.copy(sum = 0.75, update = 1.5)
    assert(buckets.replan(Seq(RankReport(None, Some(measured), None))).isDefined)
    val profile = report(buckets).get("push").get("profile")
    assert(profile.get("sum").toString === s"[${0.75 * 64 / 84},${0.75 * 20 / 84}]")
    assert(profile.get("update").toString === s"[${1.5 * 64 / 84},${1.5 * 20 / 84}]")
    assert(!profile.has("gap"))
  }

  test("the paper's policy plans pulls only") {
    val buckets = adaptive("paper")
    assert(buckets.replan(Seq(both)).map(_._2) === Some(whole))
    val Seq(pull, push) = Seq("pull", "push").map(report(buckets).get(_))
    assert(pull.get("policy").asText === "paper" && pull.get("profile").get("in_turn").asBoolean)
    assert(push.get("policy").asText === "whole" && !push.get("profile").has("in_turn"))
    val settings = BatchingSettings("paper", "ibatch", 5, 0.25)
    assert((settings.pull, settings.push, settings.isSequential) === ((
      Policy.Paper,
      Policy.IBatch,
      true
    )))
  }

  test("the paper's layerwise policy requests one layer at a time") {
    val buckets = adaptive("paper-layerwise")
    assert(buckets.nextReportStep.isEmpty)
    assert((buckets.pulls, buckets.pushes) === ((layerwise, whole)))
    assert(BatchingSettings("paper-layerwise", "", 5, 0.25).isSequential)
  }

  test("with many layers, a few equal parts are tried too") {
    val many = IndexedSeq.fill(72)(64L)
    val buckets = adaptive("ibatch", traffic = traffic.copy(pull = many, push = many))
    val measured =
      direction.copy(compute = IndexedSeq.fill(72)(0.1), startup = 0.2, perByte = 1.0 / 256)
    def after(seconds: Double) =
      buckets.replan(Seq(RankReport(Some(measured), Some(measured), Some(seconds)))).map(_._1.size)
    assert(after(9.0).exists(size => size > 1 && size < 72))
    assert(after(5.0) === Some(25), "72 start-ups would take far longer")
    after(3.0)
    assert(after(5.0) === Some(25), "the plan was used once more")
    assert(tried(buckets) === Seq("whole" -> 9.0, "ibatch" -> 5.0, "parts:24" -> 3.0))
    assert(outcomes(buckets) === Set("tried, and rejected: parts:24 was faster"))
    assert(kept(buckets) === Seq("parts:24", "parts:24"))
    val sizes = buckets.pulls.map(batch => batch.last - batch.first + 1)
    assert(sizes.take(2) === Seq(1, 2), "the first part is cut again")
    assert(sizes.drop(2).forall(size => size >= 2 && size <= 4))
  }

  test("a plan that loses is followed by one that counts the handling of batches") {
    val many = IndexedSeq.fill(40)(64L)
    val buckets = adaptive("ibatch", traffic = traffic.copy(pull = many, push = many))
    val measured =
      direction.copy(compute = IndexedSeq.fill(40)(0.1), startup = 1e-6, perByte = 1.0 / 256)
    def after(seconds: Double) = {
      buckets.replan(Seq(RankReport(Some(measured), Some(measured), Some(seconds))))
      (buckets.pulls.size, buckets.pushes.size)
    }
    assert(after(9.0) === ((40, 40)))
    val promised = report(buckets).get("pull").get("predicted_iteration_seconds").asDouble
    val (pulls, pushes) = after(promised + 0.1 * 80)
    assert(pulls + pushes < 40)
    assert(math.abs(report(buckets).get("push").get("profile").get("handling").asDouble - 0.1) <
      1e-9)
  }

  test("directions overlap if neither has one batch for all layers") {
    assert(BatchingSettings("ibatch", "", 5, 0.25).canOverlap)
    Seq(("whole", "ibatch"), ("ibatch", "whole"), ("paper", ""), ("paper-layerwise", "")).foreach {
      case (pull, push) =>
        assert(!BatchingSettings(pull, push, 5, 0.25).canOverlap)
    }
  }

  test("directions that share the network are planned together") {
    val buckets = adaptive("ibatch")
    assert(buckets.replan(Seq(both)) === Some((layerwise, whole)))
    val seconds =
      Set("pull", "push").map(report(buckets).get(_).get("predicted_iteration_seconds").asDouble)
    assert(seconds.size === 1 && seconds.head > 3)
    assert(report(buckets).get("push").get("profile").get("compute").toString === "[0.5,0.25]")
    assert(outcomes(buckets) === Set("used"), "nothing is tried without timed iterations")
    assert(kept(buckets) === Seq("plan, 2 pulls, one per layer", "plan, 1 push"))
  }

  /** Replan after iterations of so many seconds. */
  private def replanned(buckets: AdaptiveBuckets, seconds: Double*) =
    seconds.map(each => buckets.replan(Seq.fill(2)(both.copy(seconds = Some(each)))))

  test("a plan stays if no simpler policy is faster") {
    val buckets = adaptive("ibatch")
    val looks = Seq(3.0, 1.0, 0.99, 5.0).map { seconds =>
      (replanned(buckets, seconds).head, buckets.nextReportStep)
    }
    assert(looks === Seq(
      (Some((layerwise, whole)), Some(11)),
      (Some((layerwise, layerwise.reverse)), Some(16)),
      (Some((layerwise, whole)), Some(66)),
      (None, Some(116))
    ))
    assert(tried(buckets) === Seq("whole" -> 3.0, "ibatch" -> 1.0, "layerwise" -> 0.99))
    assert(outcomes(buckets) === Set("tried, and used"))
  }

  test("a policy that is faster than the plan is used") {
    val buckets = adaptive("ibatch")
    val planned = Some((layerwise, whole))
    val found = replanned(buckets, 3.0, 1.0, 0.9, 1.0)
    assert(found.takeRight(2) === Seq(planned, Some((layerwise, layerwise.reverse))))
    assert(buckets.pushes === layerwise.reverse)
    assert(outcomes(buckets) === Set("tried, and rejected: layerwise was faster"))
    assert(Seq("policy", "asked").map(report(buckets).get("pull").get(_).asText) === Seq(
      "layerwise",
      "ibatch"
    ))
    assert(kept(buckets) === Seq("layerwise", "layerwise"))
    val other = adaptive("ibatch")
    assert(replanned(other, 0.8, 1.0, 0.9, 1.0).last === Some((whole, whole)))
    assert(outcomes(other) === Set("tried, and rejected: whole was faster"))
  }

  test("the summary of a rejected plan has its prediction and its measurement") {
    val buckets = adaptive("ibatch")
    replanned(buckets, 3.0)
    val promised = report(buckets).get("pull").get("predicted_iteration_seconds").asDouble
    replanned(buckets, 1.0, 0.9, 1.0)
    val found = report(buckets).get("push").get("tried")
    val plan = found.get("ibatch")
    assert((plan.get("seconds").asDouble, plan.get("predicted_iteration_seconds").asDouble) === ((
      1.0,
      promised
    )))
    assert((plan.get("pulls").asInt, plan.get("pushes").asInt) === ((2, 1)))
    assert(
      found.get("whole").get("predicted_iteration_seconds").asDouble > promised,
      "that is why it was planned"
    )
    assert(found.get("layerwise").get("predicted_iteration_seconds").asDouble ===
      report(buckets).get("pull").get("predicted_iteration_seconds").asDouble)
  }

  test("one inline batch is timed again, as its blocks were fetched in the profile") {
    val buckets = adaptive("ibatch", traffic = traffic.copy(noticeBytes = 84))
    assert(replanned(buckets, 3.0).last.isDefined)
    assert(tried(buckets) === Nil)
    replanned(buckets, 1.0)
    assert((buckets.pulls, buckets.pushes) === ((whole, whole)))
    replanned(buckets, 0.5, 1.0)
    assert(tried(buckets) === Seq("ibatch" -> 1.0, "whole" -> 0.5))
    assert(outcomes(buckets) === Set("tried, and rejected: whole was faster"))
  }

  test("a summary distinguishes rejected plans from plans that were never tried") {
    def why(buckets: AdaptiveBuckets) = {
      assert(outcomes(buckets).size === 1 && kept(buckets) === Seq("whole", "whole"))
      outcomes(buckets).head
    }
    val set = "spark.sparkdl.comm.ps.profileIterations=5"
    assert(
      why(adaptive("ibatch")) === s"not planned: the run ended before 6 iterations were done ($set)"
    )
    assert(why(adaptive("ibatch", traffic = traffic.copy(world = 1))) ===
      "not planned: there is one rank, which transfers nothing")
    val unmeasured = adaptive("ibatch")
    unmeasured.replan(Seq(RankReport(None, None, Some(1.0))))
    assert(why(unmeasured).startsWith("not planned: no rank measured its layers") && why(unmeasured)
      .contains("GPU"))
    val stopped = adaptive("ibatch")
    replanned(stopped, 3.0, 1.0)
    assert(outcomes(stopped) === Set("used: on trial when the run ended, layerwise in use"))
    assert(kept(stopped) === Seq("trial of layerwise", "trial of layerwise"))
  }

  test("a rival that is predicted to be far slower is not tried") {
    val buckets = adaptive("ibatch")
    // its two start-ups follow one another
    val slowPushes = both.copy(
      push = both.push.map(_.copy(compute = IndexedSeq(0.1, 0.1), startup = 2)),
      seconds = Some(3.0)
    )
    assert(buckets.replan(Seq(slowPushes)) === Some((layerwise, whole)))
    assert(buckets.replan(Seq(slowPushes.copy(seconds = Some(2.0)))) === None)
    assert(tried(buckets).map(_._1) === Seq("whole", "ibatch"), "one push per layer starts twice")
  }

  test("a plan that saves next to nothing is not tried") {
    val buckets = adaptive("ibatch")
    val computing = RankReport(Some(direction), Some(direction.copy(startup = 5)), Some(6.5))
    assert(buckets.replan(Seq(computing)) === Some((whole, whole)))
    assert(outcomes(buckets).forall(_.matches(
      "not tried: predicted [0-9.]+ s per iteration, and [0-9.]+ s without a plan"
    )))
    assert(buckets.nextReportStep === Some(56))
  }

  test("without memory for two versions of the parameters nothing is planned") {
    val buckets = new AdaptiveBuckets(
      BatchingSettings("ibatch", "", 5, 0.25),
      traffic.copy(pullsAhead = false),
      clock,
      Some("9 bytes")
    )
    assert(!buckets.needsProfiles && buckets.nextReportStep.isEmpty)
    assert((buckets.pulls, buckets.pushes) === ((whole, whole)))
    assert(outcomes(buckets) === Set("not planned: 9 bytes"))
  }

  test("a new plan is tried if it has other batches") {
    val buckets = adaptive("ibatch")
    replanned(buckets, 3.0, 1.0, 0.9, 1.0) // layerwise stays
    def slower(startup: Double) =
      buckets.replan(Seq(both.copy(
        pull = both.pull.map(_.copy(startup = startup)),
        seconds = Some(2.0)
      )))
    assert(slower(0.002) === Some((layerwise, whole)))
    assert(slower(0.009) === None, "layerwise was measured before, so only the plan is tried")
    assert(tried(buckets) === Seq("layerwise" -> 2.0, "ibatch" -> 2.0))
    assert(slower(0.009) === Some((layerwise, whole)))
    assert(tried(buckets) === Seq("layerwise" -> 2.0, "ibatch" -> 2.0))
    assert(outcomes(buckets) === Set("tried, and used"), "the same batches as before need no trial")
  }
}

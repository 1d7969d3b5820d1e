// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ibatch

import scala.collection.immutable.ListMap

import com.fasterxml.jackson.databind.node.ObjectNode

import sparkdl.comm.Clock

/**
 * Decisions about batches for all ranks of a fit, from what the ranks measured. The executor of
 * rank 0 decides, because planning for many layers keeps a core busy. The front end tells the other
 * ranks. Their instances know only the first batches, which are the same on all ranks.
 *
 * A policy that needs a profile begins with one batch for all layers, and plans after
 * `profileIterations` steps. If pulls overlap pushes, `ibatch` plans both directions together. If
 * the plan is predicted to save time, an [[Autotuner]] tries it for a few steps, and after it
 * `layerwise` and, for many layers, [[AdaptiveBuckets.FewParts]] equal parts, unless their
 * prediction is far worse. It keeps the fastest, or one that is as fast with fewer batches.
 *
 * @param clock bounds the planner's search; see [[Planner.planBoth]]
 * @param obstacle why nothing can be planned; None if it can
 */
private[comm] final class AdaptiveBuckets(
    settings: BatchingSettings,
    traffic: Traffic,
    clock: Clock,
    obstacle: Option[String] = None
) {
  import AdaptiveBuckets._

  private val pull = new DirectionBatches(Direction.Pull, settings.pull, traffic.pull, traffic)
  private val push = new DirectionBatches(Direction.Push, settings.push, traffic.push, traffic)
  private val directions = Seq(pull, push)
  private var trial = Option.empty[Autotuner]
  private var reportStep = settings.profileIterations + 1
  private var hasReported = false
  private var predictedSeconds = 0.0 // seconds per iteration, by the last plan of both directions

  // Predicted seconds per iteration of the batches in use and of a plan that saves too little.
  private var tooSimilar = Option.empty[(Double, Double)]

  /**
   * Batches of parameters (`pulls`) and gradients (`pushes`) from the next step on, in the order of
   * their transfer.
   */
  def pulls: IndexedSeq[Batch] = pull.batches
  def pushes: IndexedSeq[Batch] = push.batches

  /** True if a policy needs measurements and there is another rank to measure with. */
  val needsProfiles: Boolean = settings.needsProfile && traffic.world > 1 && obstacle.isEmpty

  /**
   * Step, counted from 1, after which all ranks report their measurements. The first step is not
   * measured.
   */
  def nextReportStep: Option[Int] =
    if (needsProfiles) Some(reportStep) else None

  /**
   * Plan again, after the step [[nextReportStep]].
   *
   * @param reports of all ranks, in any order
   * @return pulls and pushes, or None if they stay the same
   * @throws IllegalArgumentException if a report is not valid
   */
  def replan(reports: Seq[RankReport]): Option[(IndexedSeq[Batch], IndexedSeq[Batch])] = {
    val seconds = RecentSteps.median(reports.flatMap(_.seconds))
    val made = (runningTrial, seconds) match {
      case (Some(autotuner), Some(taken)) => tune(autotuner, taken)
      case _ => planFrom(reports, seconds)
    }
    hasReported = true
    reportStep +=
      (if (runningTrial.isEmpty) ReplanInterval * settings.profileIterations
       else math.min(TrialSteps, settings.profileIterations))
    if (made) Some((pulls, pushes)) else None
  }

  /**
   * Write the batches in use to `reply`, under `pull` and `push`, for the run's summary. The fields
   * of each are:
   *
   *  - `kept`, a description, which begins with "trial of" during a trial; `policy`, which made the
   *   batches; and `batches`.
   *  - If they were made from a profile: `predicted_seconds` of this direction, `optimal_ratio`, and
   *   `profile` in the format of [[PlanRequest]].
   *  - If both directions were planned together: `predicted_iteration_seconds`.
   *  - `tried`: for each policy, measured `seconds` of an iteration, `predicted_iteration_seconds`,
   *   and the numbers of `pulls` and `pushes`.
   *  - `asked`, the policy that was set, and `outcome`, its result: if nothing was planned, why.
   */
  def report(reply: ObjectNode): Unit =
    Seq(Direction.Pull -> pull, Direction.Push -> push).foreach { case (direction, batches) =>
      val described =
        batches.report(reply.putObject(direction.name)).put("outcome", outcome(batches))
      if (runningTrial.isDefined) described.put("kept", s"trial of ${batches.description}")
      trial.map(_.measurements).filter(_.nonEmpty).foreach(describe(
        _,
        described.putObject("tried")
      ))
    }

  private def describe(measurements: ListMap[Policy, Autotuner.Measured], reply: ObjectNode): Unit =
    measurements.foreach { case (policy, each) =>
      val described =
        reply.putObject(policy.name).put("seconds", each.seconds).put(
          "predicted_iteration_seconds",
          each.predictedSeconds
        )
      described.put("pulls", each.pulls).put("pushes", each.pushes)
    }

  private def outcome(batches: DirectionBatches): String =
    if (!batches.policy.needsProfile) "used"
    else if (!batches.isMeasured) s"not planned: $whyUnmeasured"
    else if (tooSimilar.isDefined) {
      val (before, planned) = tooSimilar.get
      f"not tried: predicted $planned%.3g s per iteration, and $before%.3g s without a plan"
    } else
      trial.fold("used") { autotuner =>
        val chosen = autotuner.current
        if (!autotuner.isOver) s"used: on trial when the run ended, ${chosen.name} in use"
        else if (chosen == batches.policy) "tried, and used"
        else s"tried, and rejected: ${chosen.name} was faster"
      }

  private def whyUnmeasured: String = {
    val set = s"spark.sparkdl.comm.ps.profileIterations=${settings.profileIterations}"
    if (obstacle.isDefined) obstacle.get
    else if (!needsProfiles) "there is one rank, which transfers nothing"
    else if (!hasReported)
      s"the run ended before ${nextReportStep.get} iterations were done ($set)"
    else
      s"no rank measured its layers in the iterations before a plan ($set): a rank cannot if it" +
        " computes on a GPU, or if backward makes a gradient in several rounds"
  }

  private def measured(seconds: Double, predictedSeconds: Double): Autotuner.Measured =
    Autotuner.Measured(seconds, predictedSeconds, pulls.size, pushes.size)

  private def runningTrial: Option[Autotuner] = trial.filterNot(_.isOver)

  /**
   * Record that an iteration with the current batches took `seconds`. Return true if the batches
   * change.
   */
  private def tune(autotuner: Autotuner, seconds: Double): Boolean = {
    val (before, policy) = ((pulls, pushes), autotuner.current)
    autotuner.record(measured(seconds, predictedSeconds))
    if (autotuner.isRepeated && !autotuner.isOver)
      learnHandling(autotuner.measurements(Policy.IBatch))
    if (!autotuner.isOver || autotuner.current != policy) planTogether(autotuner.current)
    (pulls, pushes) != before
  }

  /** Explain by the handling of batches why a plan took longer than predicted. */
  private def learnHandling(plan: Autotuner.Measured): Unit = {
    val handling = math.max(0, plan.seconds - plan.predictedSeconds) / plan.batches
    directions.foreach(_.handling = handling)
  }

  private def planFrom(reports: Seq[RankReport], seconds: Option[Double]): Boolean = {
    val isFirst = !directions.exists(_.isMeasured)
    val before = (pulls, pushes)
    def learn(batches: DirectionBatches, found: Seq[DirectionProfile]): Boolean =
      DirectionProfile.agree(found).exists(batches.learn(_, settings.replanDrift))
    val learned = Seq(learn(pull, reports.flatMap(_.pull)), learn(push, reports.flatMap(_.push)))
    val changed = learned.contains(true)
    if (changed && sharesNetwork) {
      val chosen = if (isFirst) Policy.Whole else trial.fold[Policy](Policy.IBatch)(_.current)
      if (!chosen.needsProfile) planTogether(chosen) // for its prediction
      val known = seconds.map(measured(_, predictedSeconds))
      val without = predictedSeconds
      planTogether(Policy.IBatch)
      tooSimilar =
        if (isFirst && predictedSeconds > (1 - LeastGain) * without)
          Some((without, predictedSeconds))
        else None
      if (tooSimilar.isDefined) planTogether(chosen)
      else if (isFirst || (pulls, pushes) != before) known.foreach(beginTrial(chosen, _, isFirst))
      else if (chosen != Policy.IBatch) planTogether(chosen)
    } else if (changed) directions.foreach(_.planAlone())
    changed
  }

  /** True if both directions are planned from profiles and overlap. */
  private def sharesNetwork: Boolean =
    traffic.pullsAhead && directions.forall(batches =>
      batches.policy == Policy.IBatch && batches.isMeasured
    )

  private def planTogether(policy: Policy): Unit = {
    val (pulling, pushing) = (pull.profile, push.profile)
    val (pulled, pushed, seconds) =
      if (policy == Policy.IBatch) Planner.planBoth(pulling, pushing, clock)
      else Planner.planBothAs(pulling, pushing, policy)
    pull.use(policy, pulled, pulling, seconds)
    push.use(policy, pushed, pushing, seconds)
    predictedSeconds = seconds
  }

  /**
   * Begin to try the plan and its rivals.
   *
   * @param before the policy in use before the plan
   * @param measured what was measured with it
   */
  private def beginTrial(before: Policy, measured: Autotuner.Measured, isFirst: Boolean): Unit = {
    // While the first profile is measured, inline blocks are fetched. So time one batch again
    // without that.
    val again = if (isFirst && directions.exists(_.isInlineWhole)) Seq(before) else Nil
    val known = ListMap(Seq(before).filterNot(_.needsProfile).diff(again).map(_ -> measured): _*)
    val layerwise =
      if (directions.forall(_.batches.size == traffic.layers)) Nil else Seq(Policy.Layerwise)
    val parts = if (traffic.layers > 2 * FewParts) Seq(Policy.Parts(FewParts)) else Nil
    val rivals = (layerwise ++ parts).filter(predict(_) <= MostSlowdown * predictedSeconds)
    trial =
      Some(new Autotuner(Policy.IBatch, (rivals ++ again).filterNot(known.contains), known))
  }

  private def predict(policy: Policy): Double =
    Planner.planBothAs(pull.profile, push.profile, policy)._3
}

private[comm] object AdaptiveBuckets {

  /** Multiple of `profileIterations` after which a planned profile is measured again. */
  private val ReplanInterval = 10

  /**
   * Steps for which a trial uses each policy. New batches take effect after one step for pulls and
   * after two for pushes, so three steps are timed.
   */
  private val TrialSteps = 5

  /** Fraction of an iteration that a first plan must be predicted to save, so that it is tried. */
  private val LeastGain = 0.03

  /** Multiple of the plan's predicted time up to which the prediction of a rival may be. */
  private val MostSlowdown = 1.3

  /**
   * Number of parts of the trial's [[Policy.Parts]]. They cost few messages, and the first and the
   * last part, which cannot overlap, are small.
   */
  private val FewParts = 24
}

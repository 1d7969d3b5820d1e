package sparkdl.comm.ibatch

import scala.collection.immutable.ListMap

import com.fasterxml.jackson.databind.node.ObjectNode

import sparkdl.comm.Clock

/**
 * Decides for all ranks of a fit in which batches layers travel, from what the ranks measured. The executor of rank 0 decides,
 * and the front end tells the others: a plan of many layers keeps a core busy. Those of other ranks know the first batches,
 * which are the same everywhere.
 *
 * A policy that needs a profile begins with one batch for everything, and plans after `profileIterations` steps. Where pulls
 * go on while gradients are pushed, `ibatch` plans both together, and an [[Autotuner]] tries that plan for as many steps
 * more, then `layerwise` and, of many layers, [[AdaptiveBuckets.Few]] equal parts for as many again, and stays with what was
 * the fastest, or as fast with fewer batches.
 *
 * @param clock bounds how long the planner looks; see [[Planner.together]]
 */
private[comm] final class AdaptiveBuckets(settings: BatchingSettings, traffic: Traffic, clock: Clock) {
  import AdaptiveBuckets._

  private val pull = new DirectionBatches(Direction.Pull, settings.pull, traffic.pull, traffic)
  private val push = new DirectionBatches(Direction.Push, settings.push, traffic.push, traffic)
  private val both = Seq(pull, push)
  private var trial = Option.empty[Autotuner]
  private var looks = 1
  private var predicted = 0.0 // seconds of an iteration, by the last plan of both directions

  /** Of parameters from the next step on, in the order in which they travel; likewise `pushes`, of gradients. */
  def pulls: IndexedSeq[Batch] = pull.batches
  def pushes: IndexedSeq[Batch] = push.batches

  /** Whether a policy needs measurements, and there is another rank to measure with. */
  val profiles: Boolean = settings.needsProfile && traffic.world > 1

  /** The step, counted from 1, after which all ranks look at what they measured. The first step is not measured. */
  def nextLook: Option[Int] = if (profiles) Some(looks * settings.profileIterations + 1) else None

  /**
   * After that step.
   *
   * @param reports of all ranks, in any order
   * @return pulls and pushes, if they were planned anew; None if they stay as they are
   * @throws IllegalArgumentException if a report makes no sense
   */
  def replan(reports: Seq[RankReport]): Option[(IndexedSeq[Batch], IndexedSeq[Batch])] = {
    val seconds = ProfileAgreement.agreedSeconds(reports.flatMap(_.seconds))
    val made = (onTrial, seconds) match {
      case (Some(autotuner), Some(taken)) => tune(autotuner, taken)
      case _ => planFrom(reports, seconds)
    }
    looks += 1
    while (onTrial.isEmpty && looks % LookAgain != 1) looks += 1
    if (made) Some((pulls, pushes)) else None
  }

  /**
   * For the run's summary: of `pull` and `push` what is in use. It has `kept`, in words, the `policy` that made it, its
   * `batches` and, if these were made from a profile, `predicted_seconds`, `optimal_ratio` and the `profile`, as
   * [[PlanRequest]] takes it; if both directions were planned together, the predicted `iteration_seconds`. `tried` has, by
   * policy, `seconds` of an iteration, its `predicted_seconds`, and how many `pulls` and `pushes` there were. `asked` is the
   * policy that was asked for, and `outcome` what has become of it: if nothing was planned, why.
   */
  def report(reply: ObjectNode): Unit =
    Seq(Direction.Pull -> pull, Direction.Push -> push).foreach { case (direction, batches) =>
      val described = batches.report(reply.putObject(direction.name)).put("outcome", outcome(batches))
      trial.map(_.tried).filter(_.nonEmpty).foreach(describe(_, described.putObject("tried")))
    }

  private def describe(tried: ListMap[Policy, Autotuner.Measured], reply: ObjectNode): Unit =
    tried.foreach { case (policy, each) =>
      val described = reply.putObject(policy.name).put("seconds", each.seconds).put("predicted_seconds", each.predicted)
      described.put("pulls", each.pulls).put("pushes", each.pushes)
    }

  private def outcome(batches: DirectionBatches): String =
    if (!batches.policy.needsProfile) "used"
    else if (!batches.isMeasured) s"not planned: $whyUnmeasured"
    else
      trial.fold("used") { autotuner =>
        val chosen = autotuner.current
        if (!autotuner.isOver) s"used: on trial when the run ended, ${chosen.name} in use"
        else if (chosen == batches.policy) "tried, and used"
        else s"tried, and rejected: ${chosen.name} was faster"
      }

  private def whyUnmeasured: String = {
    val set = s"spark.sparkdl.comm.ps.profileIterations=${settings.profileIterations}"
    if (!profiles) "there is one rank, to which nothing comes"
    else if (looks == 1) s"the run ended before ${nextLook.get} iterations were done ($set)"
    else s"no rank measured its layers in the iterations before a plan ($set): a rank that computes on a GPU cannot"
  }

  private def measured(seconds: Double, predicted: Double): Autotuner.Measured =
    Autotuner.Measured(seconds, predicted, pulls.size, pushes.size)

  private def onTrial: Option[Autotuner] = trial.filterNot(_.isOver)

  /** After an iteration with the current batches took so long. Whether there are others now; likewise [[planFrom]]. */
  private def tune(autotuner: Autotuner, seconds: Double): Boolean = {
    val before = autotuner.current
    autotuner.took(measured(seconds, predicted))
    val changes = autotuner.current != before
    if (changes) planTogether(autotuner.current)
    changes
  }

  private def planFrom(reports: Seq[RankReport], seconds: Option[Double]): Boolean = {
    val isFirst = !both.exists(_.isMeasured)
    val before = (pulls, pushes)
    def learn(batches: DirectionBatches, found: Seq[DirectionProfile]): Boolean =
      ProfileAgreement.agree(found).exists(batches.learn(_, settings.replanDrift))
    val learnt = Seq(learn(pull, reports.flatMap(_.pull)), learn(push, reports.flatMap(_.push)))
    val changed = learnt.contains(true)
    if (changed && sharesNetwork) {
      val chosen = if (isFirst) Policy.Whole else trial.fold[Policy](Policy.IBatch)(_.current)
      if (!chosen.needsProfile) planTogether(chosen) // for what it predicts
      val known = seconds.map(measured(_, predicted))
      planTogether(Policy.IBatch)
      if (isFirst || (pulls, pushes) != before) known.foreach(beginTrial(chosen, _, isFirst))
      else if (chosen != Policy.IBatch) planTogether(chosen)
    } else if (changed) both.foreach(_.planAlone())
    changed
  }

  /** Whether both directions are planned from profiles, and travel at the same time. */
  private def sharesNetwork: Boolean =
    traffic.ahead && both.forall(batches => batches.policy == Policy.IBatch && batches.isMeasured)

  private def planTogether(policy: Policy): Unit = {
    val (pulling, pushing) = (pull.profile, push.profile)
    val (pulled, pushed, seconds) =
      if (policy == Policy.IBatch) Planner.together(pulling, pushing, clock)
      else Planner.alike(pulling, pushing, policy)
    pull.take(policy, pulled, pulling, seconds)
    push.take(policy, pushed, pushing, seconds)
    predicted = seconds
  }

  /**
   * @param before the policy in use before the plan
   * @param measured of it
   */
  private def beginTrial(before: Policy, measured: Autotuner.Measured, isFirst: Boolean): Unit = {
    // Inline blocks are fetched while the first profile is measured, so one batch is timed again without that.
    val again = if (isFirst && both.exists(_.isInlineWhole)) Seq(before) else Nil
    val known = ListMap(Seq(before).filterNot(_.needsProfile).diff(again).map(_ -> measured): _*)
    val layerwise = if (both.forall(_.batches.size == traffic.layers)) Nil else Seq(Policy.Layerwise)
    val parts = if (traffic.layers > 2 * Few) Seq(Policy.Parts(Few)) else Nil
    trial = Some(new Autotuner(Policy.IBatch, (layerwise ++ parts ++ again).filterNot(known.contains), known))
  }
}

private[comm] object AdaptiveBuckets {

  /** Once there is a plan, the profile is looked at again after this many times `profileIterations`. */
  private val LookAgain = 10

  /** Batches of which the first and the last, which nothing hides, are a small part, and that cost few messages. */
  private val Few = 24
}

package sparkdl.comm.ibatch

/** Cuts a network into batches (S. Wang, A. Pi, X. Zhou: "Scalable Distributed DL Training: Batching Communication and Computation"). */
object Planner {
  def plan(profile: Profile, policy: Policy): Plan = plan(new Pipeline(profile), policy)

  /** The plan's time over that of an optimal one: 1 or more. */
  def ratioToOptimal(profile: Profile, plan: Plan): Double = {
    val best = Planner.plan(profile, Policy.Optimal).seconds
    if (plan.seconds == best) 1.0 else plan.seconds / best
  }

  private def plan(pipeline: Pipeline, policy: Policy): Plan = policy match {
    case Policy.Whole => pipeline.plan(IndexedSeq(pipeline.layers))
    case Policy.Layerwise => pipeline.plan(1 to pipeline.layers)
    case Policy.Greedy1 => pipeline.plan(Greedy.forwards(pipeline))
    case Policy.Greedy2 => pipeline.plan(Greedy.backwards(pipeline))
    case Policy.IBatch => Seq[Policy](Policy.Greedy1, Policy.Greedy2).map(plan(pipeline, _)).minBy(_.seconds)
    case Policy.Optimal => optimal(pipeline)
    case Policy.Fixed(bytes) => pipeline.plan(fixed(pipeline.profile, bytes))
  }

  /**
   * Exact, in O(L) per step of a bisection over the time.
   *
   * Can all be computed within `seconds`? The batches that begin after layer a with number k allow the most for what follows
   * if each ends as late as it may: a later end leaves less to compute, which is all that the next batch's limit depends
   * on. So one pass from the first layer on answers it, and with the fewest batches. Bisection ends when no number lies
   * between a time that is possible and one that is not; the additions round monotonically, so rounding does not make it
   * miss a plan.
   */
  private def optimal(pipeline: Pipeline): Plan = {
    var best = pipeline.plan(IndexedSeq(pipeline.layers))
    var impossible = 0.0 // or possible, and then `best` takes no time either
    var middle = best.seconds / 2
    while (impossible < middle && middle < best.seconds) {
      within(pipeline, middle) match {
        case Some(ends) => best = pipeline.plan(ends)
        case None => impossible = middle
      }
      middle = impossible + (best.seconds - impossible) / 2
    }
    within(pipeline, best.seconds).fold(best)(pipeline.plan)
  }

  /** The ends of the fewest batches with which all is computed within `seconds`; None if that is impossible. */
  private def within(pipeline: Pipeline, seconds: Double): Option[IndexedSeq[Int]] = {
    val ends = IndexedSeq.newBuilder[Int]
    var (k, after, last) = (1, 0, 0)
    while (last < pipeline.layers) {
      while (last < pipeline.layers && pipeline.finish(k, after, last + 1) <= seconds) last += 1
      if (last == after) return None
      ends += last
      after = last
      k += 1
    }
    Some(ends.result())
  }

  private def fixed(profile: Profile, limit: Long): IndexedSeq[Int] = {
    require(profile.bytes.nonEmpty, s"policy fixed:$limit needs the bytes of each layer in the profile")
    val ends = IndexedSeq.newBuilder[Int]
    var filled = 0L
    profile.bytes.zipWithIndex.foreach { case (size, before) =>
      if (before > 0 && filled + size > limit) {
        ends += before
        filled = 0
      }
      filled += size
    }
    (ends += profile.layers).result()
  }
}

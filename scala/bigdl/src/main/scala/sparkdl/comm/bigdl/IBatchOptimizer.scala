package sparkdl.comm.bigdl

import org.apache.spark.SparkContext
import org.apache.spark.rdd.RDD

import com.intel.analytics.bigdl.{Criterion, Module, SparkdlBigDL}
import com.intel.analytics.bigdl.dllib.feature.dataset.{
  DataSet,
  DistributedDataSet,
  MiniBatch,
  Sample,
  SampleToMiniBatch
}
import com.intel.analytics.bigdl.dllib.optim.Optimizer
import com.intel.analytics.bigdl.numeric.NumericFloat

/**
 * Trains a BigDL model on all executors at once, as BigDL's own `DistriOptimizer` does and with the same result, but with the
 * parameter server of this package: each layer waits for its own parameters just before it is used, and its gradients leave
 * while backward goes on, in planned buckets. There is one Spark job for all of training, of one barrier stage; nothing
 * passes through the driver between iterations.
 *
 * It is set up by the same methods. What an executor keeps of a network's parameters and their optimizer is a shard of them, so
 * optimization methods have to be elementwise. The conf's keys `spark.sparkdl.comm.ps.batching` and its kin say how layers
 * travel.
 *
 * @param network with float parameters
 * @param batches of as many partitions as there are executors
 */
class IBatchOptimizer(
    network: Module[Float],
    batches: DistributedDataSet[MiniBatch[Float]],
    loss: Criterion[Float]
) extends Optimizer[Float, MiniBatch[Float]](network, batches, loss) {
  import IBatchOptimizer._

  private var clipping = Option.empty[(Float, Float)]
  private var byNorm = false
  private var numbers = "{}"
  private var known = Seq.empty[Float]
  private var own = Map.empty[String, String]

  /** The last training in numbers, with the fields of a fit's summary that [[Account.summary]] names, as JSON. */
  def summary: String = numbers

  /** The mean loss of each iteration of the last training: after a restart, of the last attempt. */
  def losses: Seq[Float] = known

  /** Sets a key of this package's, such as `spark.sparkdl.comm.ps.batching`, for this optimizer alone. */
  def setConf(key: String, value: String): this.type = {
    own += key -> value
    this
  }

  override def setConstantGradientClipping(min: Double, max: Double): this.type = {
    clipping = Some((min.toFloat, max.toFloat))
    this
  }

  override def setGradientClippingByl2Norm(clipNorm: Double): this.type = {
    byNorm = true
    this
  }

  override def disableGradientClipping(): this.type = {
    clipping = None
    byNorm = false
    this
  }

  /**
   * Trains, and returns the model that was given, with its new parameters.
   *
   * @throws UnsupportedTrainingException if this cannot be trained so: before anything is, where that can be known
   * @throws TrainingFailedException if a rank failed more often than spark.sparkdl.comm.maxRestarts allows
   */
  override def optimize(): Module[Float] =
    try train()
    catch { case Refusal(why) => throw new UnsupportedTrainingException(why) }

  private def train(): Module[Float] = {
    val data = dataset.toDistributed()
    val sc = data.originRDD().sparkContext
    val conf = sc.getConf.setAll(own)
    check(sc)
    if (!data.isCached) prepareInput()
    val job = new TrainingJob(sc, model, data, criterion, conf)
    checkpointPath = checkpointPath.map(Checkpoints.newFolder)
    val (told, summed) = job.run(
      optimMethods,
      clipping,
      endWhen,
      for (trigger <- validationTrigger; methods <- validationMethods) yield Validation(trigger, methods.toSeq),
      validationDataSet.map(_.toDistributed()),
      for (trigger <- checkpointTrigger; path <- checkpointPath) yield CheckpointRequest(trigger, path)
    )
    numbers = summed
    known = told.iterations.map(_.loss)
    optimMethods.foreach { case (name, method) =>
      SparkdlBigDL.state(told.methods(name)).foreach { case (key, value) => SparkdlBigDL.state(method)(key) = value }
    }
    new SummaryWriter(trainSummary, validationSummary).write(told)
    model
  }

  override def prepareInput(): Unit = {
    dataset.toDistributed().cache()
    validationDataSet.foreach(_.toDistributed().cache())
  }

  private def check(sc: SparkContext): Unit = {
    def refuse(what: String): Nothing = throw new UnsupportedTrainingException(what)
    SparkdlBigDL.otherEngine.foreach(engine =>
      refuse(s"engine $engine keeps parameters in memory of its own: set the Java property bigdl.engineType=mklblas")
    )
    if (dropPercentage > 0) refuse("setDropModuleProperty: no rank's gradients are left out here")
    if (byNorm)
      refuse("setGradientClippingByl2Norm: no executor has all gradients; clip by setConstantGradientClipping")
    if (trainSummary.exists(_.getSummaryTrigger("Parameters").isDefined))
      refuse("the train summary's Parameters: the driver does not have them while training goes on")
    if (sc.getConf.get("spark.plugins", "").split(",").map(_.trim).forall(_ != Plugin))
      refuse(s"spark.plugins does not name $Plugin: set it when the application starts")
    NetworkLayers.check(model)
    optimMethods.values.foreach(ElementwiseTrial.check)
    validationMethods.foreach(methods => ValidationSums.check(methods.toSeq))
  }
}

object IBatchOptimizer {
  private val Plugin = "sparkdl.comm.CommPlugin"

  /**
   * @param batchSize rows in all executors, a multiple of executors times cores
   * @throws UnsupportedTrainingException if it is none
   */
  def apply(
      model: Module[Float],
      rows: RDD[Sample[Float]],
      criterion: Criterion[Float],
      batchSize: Int
  ): IBatchOptimizer = {
    checkBatch("batchSize", batchSize)
    val batches = DataSet.rdd(rows) -> SampleToMiniBatch[Float](batchSize)
    new IBatchOptimizer(model, batches.toDistributed(), criterion)
  }

  /** @throws UnsupportedTrainingException if a batch of `size` rows, which the parameter `name` says, has no equal parts */
  private[bigdl] def checkBatch(name: String, size: Int): Unit = {
    val (executors, cores) = (SparkdlBigDL.nodes, SparkdlBigDL.cores)
    if (size <= 0 || size % (executors * cores) != 0)
      throw new UnsupportedTrainingException(
        s"$name=$size: must be a multiple of ${executors * cores}, the executors ($executors) times the cores ($cores) of" +
          " BigDL's engine"
      )
  }
}

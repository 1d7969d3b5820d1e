package com.intel.analytics.bigdl

import scala.collection.mutable

import com.intel.analytics.bigdl.dllib.nn.Container
import com.intel.analytics.bigdl.dllib.nn.abstractnn.{AbstractModule, Activity}
import com.intel.analytics.bigdl.dllib.optim.{OptimMethod, Optimizer, Trigger}
import com.intel.analytics.bigdl.dllib.tensor.Tensor
import com.intel.analytics.bigdl.dllib.utils.{DistriParameterSynchronizer, Engine, File, MklBlas, Table}
import com.intel.analytics.bigdl.dllib.visualization.TrainSummary
import org.apache.hadoop.fs.{FileSystem, Path}
import org.apache.spark.rdd.RDD

/** The only file of the adapter that touches names which are internal to BigDL. */
object SparkdlBigDL {

  /** A layer, or a network of layers. */
  type Network = AbstractModule[Activity, Activity, Float]

  /** How many executors BigDL's engine was told of, and how many cores of each. */
  def nodes: Int = Engine.nodeNumber()
  def cores: Int = Engine.coreNumber()

  /** Tells the engine of this JVM the same. */
  def setNodeAndCore(nodes: Int, cores: Int): Unit = Engine.setNodeAndCore(nodes, cores)

  /** The name of the engine that computes, if it is not mklblas. */
  def otherEngine: Option[String] = Some(Engine.getEngineType()).filter(_ != MklBlas).map(_.toString)

  /** Runs all of `tasks` at once, on the engine's threads, and waits for them. */
  def together(tasks: Seq[() => Unit]): Unit = Engine.default.invokeAndWait(tasks)

  /** Flat vectors of all parameters of a network, and of their gradients: these lie in them from now on. */
  def flatten(network: Network): (Tensor[Float], Tensor[Float]) = network.getParameters()

  /** The layers in it that have no layers of their own, in the order in which it has them. */
  def leaves(network: Network): Seq[Network] = network match {
    case container: Container[_, _, _] => container.modules.map(_.asInstanceOf[Network]).flatMap(leaves)
    case leaf => Seq(leaf)
  }

  /** Has a leaf ask `by` for its parameters before its forward pass, in training, and give it its gradients after backward. */
  def gate(leaf: Network, by: DistriParameterSynchronizer[Float]): Unit = leaf.setParameterSynchronizer(by)

  /** What an optimization method keeps from step to step. */
  def state(method: OptimMethod[Float]): Table = method.state

  /** What a summary shows, and when. */
  def scalarTriggers(summary: TrainSummary): Iterator[(String, Trigger)] = summary.getScalarTriggers()

  /** Writes `model.N` and, for each method, `optimMethod-NAME.N`, as BigDL's optimizers do. Returns these names. */
  def save(network: Network, methods: Map[String, OptimMethod[Float]], folder: String, number: Int): Seq[String] = {
    val overwrite = true
    Optimizer.saveModel(network, Some(folder), overwrite, s".$number")
    val names = methods.map { case (name, method) =>
      Optimizer.saveOptimMethod(method, Some(folder), overwrite, s"-$name.$number")
      s"optimMethod-$name.$number"
    }
    s"model.$number" +: names.toSeq
  }

  /** Where BigDL writes files of this path, and reads them: a path without a scheme is of this machine. */
  def fileSystem(path: String): FileSystem = new Path(path).getFileSystem(File.getConfiguration(path))

  /** Those that a dataset reads to know in which order its rows come: of each partition one array of indices, in memory. */
  def orders(data: RDD[_]): Seq[RDD[Array[Int]]] = {
    val found = mutable.LinkedHashMap.empty[Int, RDD[Array[Int]]]
    def look(rdd: RDD[_]): Unit =
      if (OrderNames.contains(rdd.name)) found(rdd.id) = rdd.asInstanceOf[RDD[Array[Int]]]
      else rdd.dependencies.foreach(dependency => look(dependency.rdd))
    look(data)
    found.values.toSeq
  }

  /** As CachedDistriDataSet names them. */
  private val OrderNames = Set("original index", "shuffled index")
}

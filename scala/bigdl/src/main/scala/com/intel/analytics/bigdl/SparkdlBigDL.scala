// SPDX-License-Identifier: Apache-2.0

package com.intel.analytics.bigdl

import scala.collection.mutable

import com.intel.analytics.bigdl.dllib.nn.Container
import com.intel.analytics.bigdl.dllib.nn.abstractnn.{AbstractModule, Activity}
import com.intel.analytics.bigdl.dllib.optim.{OptimMethod, Optimizer, Trigger}
import com.intel.analytics.bigdl.dllib.tensor.Tensor
import com.intel.analytics.bigdl.dllib.utils.{
  DistriParameterSynchronizer,
  Engine,
  File,
  MklBlas,
  Table
}
import com.intel.analytics.bigdl.dllib.visualization.TrainSummary
import org.apache.hadoop.fs.{FileSystem, Path}
import org.apache.spark.rdd.RDD

/** Access to names that are internal to BigDL. No other file of the adapter uses such names. */
object SparkdlBigDL {

  /** Type of a layer, or of a network of layers. */
  type Network = AbstractModule[Activity, Activity, Float]

  /** Number of executors, and of cores of each, in the settings of BigDL's engine. */
  def nodes: Int = Engine.nodeNumber()
  def cores: Int = Engine.coreNumber()

  /** Set the numbers of the engine in this JVM. */
  def setNodeAndCore(nodes: Int, cores: Int): Unit = Engine.setNodeAndCore(nodes, cores)

  /** Name of the engine that computes, if it is not mklblas. */
  def otherEngine: Option[String] =
    Some(Engine.getEngineType()).filter(_ != MklBlas).map(_.toString)

  /** Run all of `tasks` at once, on the engine's threads, and wait for them. */
  def runAll(tasks: Seq[() => Unit]): Unit = Engine.default.invokeAndWait(tasks)

  /** Move all parameters of a network, and their gradients, into flat vectors, and return these. */
  def flatten(network: Network): (Tensor[Float], Tensor[Float]) = network.getParameters()

  /** Return the layers of a network that contain no layers, in its order. */
  def leaves(network: Network): Seq[Network] = network match {
    case container: Container[_, _, _] =>
      container.modules.map(_.asInstanceOf[Network]).flatMap(leaves)
    case leaf => Seq(leaf)
  }

  /**
   * Make a leaf ask `by` for its parameters before its forward pass, in training, and give it its
   * gradients after backward.
   */
  def gate(leaf: Network, by: DistriParameterSynchronizer[Float]): Unit =
    leaf.setParameterSynchronizer(by)

  /** Return the state that an optimization method keeps from step to step. */
  def state(method: OptimMethod[Float]): Table = method.state

  /** Return the names of a summary's values, each with its trigger. */
  def scalarTriggers(summary: TrainSummary): Iterator[(String, Trigger)] =
    summary.getScalarTriggers()

  /**
   * Write `model.N` and, for each method, `optimMethod-NAME.N`, as BigDL's optimizers do. Return
   * these names.
   */
  def save(
      network: Network,
      methods: Map[String, OptimMethod[Float]],
      folder: String,
      number: Int
  ): Seq[String] = {
    val overwrite = true
    Optimizer.saveModel(network, Some(folder), overwrite, s".$number")
    val names = methods.map { case (name, method) =>
      Optimizer.saveOptimMethod(method, Some(folder), overwrite, s"-$name.$number")
      s"optimMethod-$name.$number"
    }
    s"model.$number" +: names.toSeq
  }

  /**
   * Return the file system that BigDL uses for a path. A path without a scheme is on this machine.
   */
  def fileSystem(path: String): FileSystem =
    new Path(path).getFileSystem(File.getConfiguration(path))

  /**
   * Return the RDDs that hold the order of a dataset's rows: for each partition one array of
   * indices, in memory.
   */
  def rowOrders(data: RDD[_]): Seq[RDD[Array[Int]]] = {
    val found = mutable.LinkedHashMap.empty[Int, RDD[Array[Int]]]
    def look(rdd: RDD[_]): Unit =
      if (OrderNames.contains(rdd.name)) found(rdd.id) = rdd.asInstanceOf[RDD[Array[Int]]]
      else rdd.dependencies.foreach(dependency => look(dependency.rdd))
    look(data)
    found.values.toSeq
  }

  /** Names that CachedDistriDataSet gives these RDDs. */
  private val OrderNames = Set("original index", "shuffled index")
}
